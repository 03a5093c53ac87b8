package warden

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// What operators may ask of an adapter. The policy is not among it: that is the
// manifest's.
var (
	operatorReads   = []string{protocol.VerbQueues, protocol.VerbTail, protocol.VerbOperatorThread, protocol.VerbDead, protocol.VerbMetrics, protocol.VerbRequests, protocol.VerbMembers}
	operatorChanges = []string{protocol.VerbOperatorSend, protocol.VerbDeadReplay, protocol.VerbDeadDrop, protocol.VerbDecide}
)

// operatorPatience bounds one request to an adapter; a tail waits for a minute
// at most.
const operatorPatience = 90 * time.Second

// adapterOf finds a team's adapter; an empty name finds the only team's.
func (w *Warden) adapterOf(name string) (*adapterRun, error) {
	t, err := w.team(name)
	if err != nil {
		return nil, err
	}
	if t.adapter == nil {
		return nil, badInput("team "+t.name+" has no messages", "give an agent channels or messages in bulkhead.yaml, and run bulkhead up")
	}
	return t.adapter, nil
}

// messages passes an operator's request on to the adapter, and its answer back.
func (c *call) messages() error {
	var req wire.MessagesRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.adapterOf(req.Team)
	if err != nil {
		return err
	}
	changes := slices.Contains(operatorChanges, req.Verb)
	if !changes && !slices.Contains(operatorReads, req.Verb) {
		return badInput(fmt.Sprintf("an operator may not ask %.40q of an adapter", req.Verb), "use the bulkhead program of the same build")
	}
	ctx, cancel := context.WithTimeout(c.ctx, operatorPatience)
	defer cancel()
	m, err := a.relay(ctx, req.Verb, req.Body)
	if changes {
		c.w.operatorDid(a, c.uid, req.Verb, decided(req.Verb, req.Body), err)
	}
	if err != nil {
		return err
	}
	return c.conn.Send(c.id, wire.VerbResult, m.Body)
}

// relay asks the adapter one thing. A refusal is a fault with the reason's mend.
func (a *adapterRun) relay(ctx context.Context, verb string, body json.RawMessage) (wire.Message, error) {
	away := func(err error) error {
		return &fault{wire.Failure{
			Message: fmt.Sprintf("the adapter of team %s does not answer: %v", a.place.Team, err), Exit: wire.ExitFailed,
			Mend: "look at bulkhead status; it is started again by itself; bulkhead logs " + a.place.Name + " says why it ended",
		}}
	}
	conn, err := dialWire(ctx, a.place.OperatorSocket(), protocol.Name, protocol.Version)
	if err != nil {
		return wire.Message{}, away(err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Unix().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.Send(1, verb, body); err != nil {
		return wire.Message{}, away(err)
	}
	m, files, err := conn.Recv()
	closeFiles(files)
	if err != nil {
		return m, away(err)
	}
	switch m.Verb {
	case protocol.VerbDenied:
		var r deny.Reason
		if err := json.Unmarshal(m.Body, &r); err != nil {
			return m, away(err)
		}
		return m, refusedBy(&r)
	case protocol.VerbError:
		var f wire.Failure
		if err := json.Unmarshal(m.Body, &f); err != nil || f.Message == "" {
			return m, away(fmt.Errorf("unreadable error %.100q", m.Body))
		}
		if f.Exit == 0 {
			f.Exit = wire.ExitFailed
		}
		return m, &fault{f}
	}
	return m, nil
}

// refusedBy turns an adapter's reason into what a command ends with.
func refusedBy(r *deny.Reason) error {
	f := wire.Failure{Message: r.Error(), Mend: r.Mend, Exit: wire.ExitFailed}
	switch r.Code {
	case deny.MessageInvalid, deny.MessageTooLarge, deny.MessageDuplicateKey:
		f.Exit = wire.ExitBadInput
		for _, one := range r.Fields {
			f.Message += "\n  " + one.Name + ": " + one.Why
		}
	case deny.MessageNotAllowed:
		f.Exit = wire.ExitRefused
	}
	return &fault{f}
}

// decided is which request was decided, and how, for the record; empty for
// other verbs.
func decided(verb string, body json.RawMessage) string {
	var d protocol.Decision
	if verb != protocol.VerbDecide || json.Unmarshal(body, &d) != nil {
		return ""
	}
	if d.Approve {
		return fmt.Sprintf("request %d approved ", d.ID)
	}
	return fmt.Sprintf("request %d refused ", d.ID)
}

// operatorDid tells those who watch, and the log, what an operator changed.
func (w *Warden) operatorDid(a *adapterRun, uid uint32, verb, what string, err error) {
	r := record.Record{
		Team: a.place.Team, Agent: layout.AdapterName, Kind: record.Message, Verdict: record.Allowed,
		Target: verb, Detail: what + "by the operator with user id " + strconv.FormatUint(uint64(uid), 10),
	}
	if err != nil {
		r.Verdict, r.Detail = record.Failed, r.Detail+": "+err.Error()
	}
	w.events.emit(r)
	w.log.Info("an operator changed messages", "team", a.place.Team, "verb", verb, "what", what, "uid", uid, "error", err)
}
