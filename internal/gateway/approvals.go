package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/execution"
	"bulkhead/internal/govern"
	"bulkhead/internal/primitive/proc"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/wire"
)

// openExecutions opens what keeps calls that are not done at once. It begins to do
// them with [execution.Executions.Run], when the table is there.
func openExecutions(ctx context.Context, m *means) (group, error) {
	book, err := govern.Open(ctx, m.store, time.Now)
	if err != nil {
		return group{}, err
	}
	c := execution.Config{
		Agent: m.cfg.Agent, Store: m.store, Book: book, Asks: m.cfg.Ask.Asks, Calls: m.calls, Undo: m.undo, Still: m.still, Unknown: proc.ErrNotKnown,
		Tell: m.log.Write, Changed: m.asking, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if m.cfg.Ask != nil {
		a := m.cfg.Ask.WithDefaults()
		c.Expire, c.Waiting = a.Expire, int(a.Waiting)
	}
	e, err := execution.Open(ctx, c)
	if err != nil {
		return group{}, err
	}
	g := group{tools: e.Tools(), executions: e, book: book, close: e.Close}
	if m.cfg.Ask != nil && len(m.cfg.Ask.Egress) > 0 {
		g.destinations = &govern.Destinations{Team: m.cfg.Team, Agent: m.cfg.Agent, Book: book, Expire: c.Expire, Waiting: c.Waiting, Tell: func(r record.Record) {
			r.Agent = m.cfg.Agent
			m.log.Write(r)
			m.asking()
		}}
		if err := govern.OpenDestinations(ctx, g.destinations); err != nil {
			return group{}, errors.Join(err, e.Close())
		}
	}
	return g, nil
}

// endSession ends the grants that were for the runtime's present start.
func (b *toolbox) endSession() {
	b.mu.Lock()
	set := b.set
	b.mu.Unlock()
	if set == nil || set.book == nil {
		return // what is not open yet ends them itself
	}
	if err := set.book.EndSession(context.Background()); err != nil {
		b.means.log.Write(record.Record{
			Agent: b.means.cfg.Agent, Kind: record.Approval, Verdict: record.Failed, Detail: "the end of a session's grants is not on disk yet; they are not used any more: " + err.Error(),
		})
	}
	if set.destinations != nil {
		set.destinations.Sweep()
	}
}

// asking is how much waits for a person.
func (b *toolbox) asking() wire.Asking {
	b.mu.Lock()
	set := b.set
	b.mu.Unlock()
	if set == nil || set.executions == nil {
		return wire.Asking{}
	}
	out := set.executions.Asking()
	if set.destinations != nil {
		// What cannot be read now is told with the next change.
		list, _ := set.destinations.Approvals(context.Background(), "")
		out.Waiting += len(list)
		if len(list) > 0 && (out.Since.IsZero() || list[0].Since.Before(out.Since)) {
			out.Since = list[0].Since
		}
	}
	return out
}

// govern answers what the warden asks of approvals for an operator. It comes over the
// socket that only root reaches (docs/decisions/0095).
func (b *toolbox) govern(ctx context.Context, verb string, body json.RawMessage) (any, error) {
	agent := b.means.cfg.Agent
	if !slices.Contains(b.allowed(), string(tool.Executions)) && !slices.ContainsFunc(b.allowed(), func(s string) bool { return toolname.GroupOf(s) == tool.Executions }) {
		switch verb {
		case wire.VerbExecutions:
			return wire.AgentExecutions{Agent: agent, Executions: []wire.Execution{}}, nil
		case wire.VerbApprovals:
			return wire.AgentApprovals{Agent: agent, Approvals: []wire.Approval{}}, nil
		case wire.VerbPermits:
			return wire.AgentPermits{Agent: agent, Grants: []wire.Permit{}}, nil
		}
		return nil, tool.Refuse(deny.ToolMissing, agent, "no call of this agent waits for a person", "add ask: {tools: [...]} to agents."+agent+" in bulkhead.yaml")
	}
	set, reason := b.get(ctx)
	if reason != nil {
		return nil, reason
	}
	switch verb {
	case wire.VerbExecutions, wire.VerbExecution:
		return set.act(ctx, agent, verb, body)
	case wire.VerbApprovals:
		var q wire.ApprovalsRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, undecoded(err)
		}
		list, reason := set.executions.Approvals(ctx, q.ID)
		if reason != nil {
			return nil, reason
		}
		if set.destinations != nil {
			of, err := set.destinations.Approvals(ctx, q.ID)
			if err != nil {
				return nil, err
			}
			list = append(list, of...)
		}
		return wire.AgentApprovals{Agent: agent, Approvals: list}, nil
	case wire.VerbDecide:
		var q wire.DecideRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, undecoded(err)
		}
		if set.destinations != nil && strings.HasPrefix(q.ID, "e") {
			return set.destinations.Decide(ctx, q)
		}
		res, reason := set.executions.Decide(ctx, q)
		if reason != nil {
			return nil, reason
		}
		return res, nil
	case wire.VerbRevokePermit:
		var q wire.RevokePermitRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, undecoded(err)
		}
		if err := set.book.Revoke(ctx, q.ID, record.Record{
			SchemaVersion: record.SchemaVersion, Time: time.Now().UTC(), Team: b.means.cfg.Team, Agent: agent, Kind: record.Approval, Verdict: record.Denied,
			Target: "grant " + q.ID, Detail: fmt.Sprintf("revoked by the operator with user id %d", q.By),
		}); err != nil {
			return nil, err
		}
		if set.destinations != nil {
			set.destinations.Sweep()
		}
	}
	return wire.AgentPermits{Agent: agent, Grants: set.book.List()}, nil
}

// act answers what is asked of executions.
func (s *toolset) act(ctx context.Context, agent, verb string, body json.RawMessage) (any, error) {
	all := false
	if verb == wire.VerbExecution {
		var q wire.ExecutionRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, undecoded(err)
		}
		if reason := s.executions.Act(ctx, q); reason != nil {
			return nil, reason
		}
	} else {
		var q wire.ExecutionsRequest
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, undecoded(err)
		}
		all = q.All
	}
	list, reason := s.executions.List(ctx, all)
	if reason != nil {
		return nil, reason
	}
	return wire.AgentExecutions{Agent: agent, Executions: list}, nil
}

func undecoded(err error) error { return fmt.Errorf("gateway: the request does not decode: %w", err) }

// governs says whether a verb is one of [toolbox.govern].
func governs(verb string) bool {
	switch verb {
	case wire.VerbApprovals, wire.VerbDecide, wire.VerbPermits, wire.VerbRevokePermit, wire.VerbExecutions, wire.VerbExecution:
		return true
	}
	return false
}

// failureOf is how an operator is told what was refused.
func failureOf(err error) wire.Failure {
	f := wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}
	var r *deny.Reason
	if errors.As(err, &r) {
		f.Message, f.Mend = r.What+": "+r.Why, r.Mend
		switch r.Code {
		case deny.ToolMissing, deny.ToolInvalid, deny.ToolConflict:
			f.Exit = wire.ExitBadInput
		}
	}
	return f
}
