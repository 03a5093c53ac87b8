package warden

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/record"
	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/wire"
)

// Calls that wait for a person are kept by the agent's gateway, which carries them out.
// The warden knows which operator asks, passes the question on, and keeps a record of
// its own of each decision: what a gateway says of it may be left out by one that was
// captured. It keeps no grants (docs/decisions/0095).

// governAsk bounds a gateway's answer: it writes to its disk before, for 12 s at most
// (internal/gateway, governTime).
const governAsk = 15 * time.Second

// askGateway asks an agent's gateway over the socket that only root reaches.
func (a *agentRun) askGateway(ctx context.Context, verb string, req, into any) error {
	if err := a.fencedFault(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, governAsk)
	defer cancel()
	c, err := dialWire(ctx, a.Place.GrantsSocket(), wire.GrantsProtocol, wire.GrantsVersion)
	if err != nil {
		return notRunning(gatewayName, a.Place.Name, err)
	}
	defer func() { _ = c.Close() }()
	err = ask(ctx, c, verb, req, into)
	var f *fault
	if err == nil || errors.As(err, &f) && f.Exit != 0 {
		return err
	}
	return unanswered(a.Place.Name, verb, err)
}

// unanswered is what an operator is told when a gateway took a question and no answer
// came. What changes something may have been done.
func unanswered(agent, verb string, err error) error {
	f := wire.Failure{
		Message: fmt.Sprintf("the gateway of %s did not answer: %v", agent, err),
		Mend:    "one of an earlier build does not know approvals until `bulkhead restart " + agent + "`", Exit: wire.ExitFailed,
	}
	switch verb {
	case wire.VerbDecide, wire.VerbRevokePermit, wire.VerbExecution:
		f.Message += "; it may have taken effect"
		f.Mend = "say the same again, which does nothing twice, or look with `bulkhead approvals`, `grants` and `execution list`; " + f.Mend
	}
	return &fault{f}
}

// asking gives the agents that a question is about: those that are named, or all that
// keep calls for later.
func (w *Warden) asking(teamName string, names []string) (*teamRun, []*agentRun, error) {
	t, err := w.team(teamName)
	if err != nil {
		return nil, nil, err
	}
	var out []*agentRun
	for _, n := range names {
		a, err := w.agent(t.name, n)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, a)
	}
	if len(names) > 0 {
		return t, out, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range t.sorted() {
		if a.Want.Ask != nil || slices.ContainsFunc(a.Want.Tools.Allowed(), func(s string) bool {
			return s == string(toolname.Executions) || toolname.GroupOf(s) == toolname.Executions
		}) {
			out = append(out, a)
		}
	}
	return t, out, nil
}

// problem is why an agent cannot be asked, for an answer about several.
func problem(err error) string {
	if text := err.Error(); len(text) <= maxHow {
		return text
	}
	return err.Error()[:maxHow]
}

// approvals lists the calls that wait.
func (w *Warden) approvals(ctx context.Context, req wire.ApprovalsRequest) (*wire.ApprovalsResult, error) {
	if req.ID != "" && len(req.Agents) != 1 {
		return nil, badInput("whose call is meant is not said", "`bulkhead approvals AGENT ID`")
	}
	t, agents, err := w.asking(req.Team, req.Agents)
	if err != nil {
		return nil, err
	}
	res := &wire.ApprovalsResult{SchemaVersion: 1, Team: t.name, Agents: []wire.AgentApprovals{}}
	for _, a := range agents {
		var one wire.AgentApprovals
		err := a.askGateway(ctx, wire.VerbApprovals, wire.ApprovalsRequest{ID: req.ID}, &one)
		if err != nil && len(req.Agents) > 0 {
			return nil, err
		}
		one.Agent = a.Place.Name
		if err != nil {
			one = wire.AgentApprovals{Agent: a.Place.Name, Approvals: []wire.Approval{}, Problem: problem(err)}
		}
		res.Agents = append(res.Agents, one)
	}
	return res, nil
}

// decide passes a person's word on to the gateway that keeps the call.
func (w *Warden) decide(ctx context.Context, req wire.DecideRequest, uid uint32) (*wire.DecideResult, error) {
	a, err := w.agent(req.Team, req.Agent)
	if err != nil {
		return nil, err
	}
	req.By = uid
	var res wire.DecideResult
	err = a.askGateway(ctx, wire.VerbDecide, req, &res)
	what := "denied"
	if req.Approve {
		what = "approved " + strings.TrimSpace(req.Kind)
		if req.Kind == wire.PermitFor {
			what += " " + req.For.String()
		}
	}
	verdict := record.Allowed
	if !req.Approve {
		verdict = record.Denied
	}
	a.decided(verdict, res.Tool, req.ID, strings.TrimSpace(what), uid, err)
	if err != nil {
		return nil, err
	}
	res.SchemaVersion, res.Team, res.Agent = 1, a.Place.Team, a.Place.Name
	return &res, nil
}

// decided tells those who watch, and the log, what an operator did.
func (a *agentRun) decided(v record.Verdict, target, id, what string, uid uint32, err error) {
	if len(id) > maxProgram { // it was typed
		id = id[:maxProgram]
	}
	if len(target) > maxProgram { // the gateway said it
		target = target[:maxProgram]
	}
	detail := id + " " + what + ", by the operator with user id " + strconv.FormatUint(uint64(uid), 10)
	if err != nil {
		v = record.Failed
		detail += ": " + problem(err)
	}
	a.event(record.Approval, v, target, detail, nil)
	a.w.log.Info("an operator decides", "kind", record.Approval, "verdict", v, "team", a.Place.Team, "agent", a.Place.Name, "target", target, "what", detail, "uid", uid)
}

// permits lists the grants of tool calls.
func (w *Warden) permits(ctx context.Context, req wire.AgentRequest) (*wire.PermitsResult, error) {
	t, agents, err := w.asking(req.Team, req.Agents)
	if err != nil {
		return nil, err
	}
	res := &wire.PermitsResult{SchemaVersion: 1, Team: t.name, Agents: []wire.AgentPermits{}}
	for _, a := range agents {
		var one wire.AgentPermits
		err := a.askGateway(ctx, wire.VerbPermits, struct{}{}, &one)
		if err != nil && len(req.Agents) > 0 {
			return nil, err
		}
		one.Agent = a.Place.Name
		if err != nil {
			one = wire.AgentPermits{Agent: a.Place.Name, Grants: []wire.Permit{}, Problem: problem(err)}
		}
		res.Agents = append(res.Agents, one)
	}
	return res, nil
}

// revokePermit ends a grant of tool calls.
func (w *Warden) revokePermit(ctx context.Context, req wire.RevokePermitRequest, uid uint32) (*wire.PermitsResult, error) {
	a, err := w.agent(req.Team, req.Agent)
	if err != nil {
		return nil, err
	}
	req.By = uid
	var one wire.AgentPermits
	err = a.askGateway(ctx, wire.VerbRevokePermit, req, &one)
	a.decided(record.Denied, "grant", req.ID, "revoked", uid, err)
	if err != nil {
		return nil, err
	}
	one.Agent = a.Place.Name
	return &wire.PermitsResult{SchemaVersion: 1, Team: a.Place.Team, Agents: []wire.AgentPermits{one}}, nil
}

// executions lists what agents have under way.
func (w *Warden) executions(ctx context.Context, req wire.ExecutionsRequest) (*wire.ExecutionsResult, error) {
	t, agents, err := w.asking(req.Team, req.Agents)
	if err != nil {
		return nil, err
	}
	res := &wire.ExecutionsResult{SchemaVersion: 1, Team: t.name, Agents: []wire.AgentExecutions{}}
	for _, a := range agents {
		var one wire.AgentExecutions
		err := a.askGateway(ctx, wire.VerbExecutions, wire.ExecutionsRequest{All: req.All}, &one)
		if err != nil && len(req.Agents) > 0 {
			return nil, err
		}
		one.Agent = a.Place.Name
		if err != nil {
			one = wire.AgentExecutions{Agent: a.Place.Name, Executions: []wire.Execution{}, Problem: problem(err)}
		}
		res.Agents = append(res.Agents, one)
	}
	return res, nil
}

// execution pauses, resumes or cancels one.
func (w *Warden) execution(ctx context.Context, req wire.ExecutionRequest, uid uint32) (*wire.ExecutionsResult, error) {
	a, err := w.agent(req.Team, req.Agent)
	if err != nil {
		return nil, err
	}
	req.By = uid
	var one wire.AgentExecutions
	err = a.askGateway(ctx, wire.VerbExecution, req, &one)
	what := req.Action
	if len(what) > maxProgram { // it was sent
		what = what[:maxProgram]
	}
	a.decided(record.Allowed, "execution", req.ID, what, uid, err)
	if err != nil {
		return nil, err
	}
	one.Agent = a.Place.Name
	return &wire.ExecutionsResult{SchemaVersion: 1, Team: a.Place.Team, Agents: []wire.AgentExecutions{one}}, nil
}
