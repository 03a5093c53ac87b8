package execution

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/govern"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// Bounds of what persons are shown and say.
const (
	maxReason = 500      // bytes of why something was denied
	shortText = 300      // bytes of a field in a list
	wholeText = 64 << 10 // bytes of a field of one call; a frame has 4 MiB
)

func asReason(err error) *deny.Reason {
	var r *deny.Reason
	if errors.As(err, &r) {
		return r
	}
	return nil
}

// Decide does what a person said about a call that waits. Whoever calls it has made
// sure that it was root.
func (e *Executions) Decide(ctx context.Context, q wire.DecideRequest) (*wire.DecideResult, *deny.Reason) {
	id, n, ok := splitID(q.ID)
	if !ok {
		return nil, noWaiting(q.ID)
	}
	if q.Approve && q.Reason != "" || !q.Approve && (q.Kind != "" || q.For != 0 || q.Exact || q.Wide) {
		return nil, tool.Refuse(deny.ToolInvalid, id, "a denial gives no grant, and an approval needs no reason", "see `bulkhead approve --help`")
	}
	if len(q.Reason) > maxReason || !utf8.ValidString(q.Reason) {
		return nil, tool.Refuse(deny.ToolInvalid, id, fmt.Sprintf("the reason is no text of at most %d bytes", maxReason), "say it in fewer words")
	}
	res := &wire.DecideResult{SchemaVersion: 1, Agent: e.cfg.Agent, ID: q.ID, Approved: q.Approve}
	was := (*wire.Permit)(nil)
	given, err := e.cfg.Book.Decide(ctx, func(t *store.Tx) (*wire.Permit, error) {
		x, s, err := waitingStep(t, id, n)
		if r := asReason(err); r != nil && r.Code == deny.ToolMissing {
			// Who did not hear the answer asks again: nothing is done twice.
			if x, s, was = e.decidedSo(t, id, n, q); x != nil {
				res.Tool, res.State = s.tool, string(x.state)
				return nil, nil
			}
		}
		if err != nil {
			return nil, err
		}
		res.Tool = s.tool
		var p *wire.Permit
		if q.Approve {
			var r *deny.Reason
			a := govern.Asked{Tool: s.tool, Scope: s.scope, Digest: s.digest, Token: x.who.Token}
			if p, r = govern.NewPermit(q, a, x.id, t.Now()); r != nil {
				return nil, r
			}
			s.state = granted
			if until := t.Now().Add(e.cfg.Expire); until.After(s.expires) { // without ask in the manifest it is none
				s.expires = until
			}
			s.approved = approvedBy(q, x, s)
		} else if err := e.disapprove(t, x, s, q); err != nil {
			return nil, err
		}
		t.Record(e.decided(x, s, q, p))
		if err := x.put(t, s); err != nil {
			return nil, err
		}
		if err := x.advance(t); err != nil {
			return nil, err
		}
		res.State = string(x.state)
		return p, nil
	})
	if err != nil {
		return nil, reasonOf(err, id, e.cfg.Log)
	}
	if res.Grant = given; given == nil {
		res.Grant = was
	}
	e.poke()
	return res, nil
}

func approvedBy(q wire.DecideRequest, x *execution, s *step) string {
	return fmt.Sprintf("approved by the operator with user id %d, execution %s", q.By, x.name(s))
}

func deniedBy(q wire.DecideRequest) string {
	why := fmt.Sprintf("the operator with user id %d denied this call", q.By)
	if q.Reason != "" {
		why += ": " + q.Reason
	}
	return why
}

// decidedSo finds the step about which the same person has said the same already, and
// the grant that was given with it. x is nil when there is none.
func (e *Executions) decidedSo(t *store.Tx, id string, n int, q wire.DecideRequest) (x *execution, s *step, was *wire.Permit) {
	x, err := load(t, id)
	if err != nil || n == 0 && len(x.steps) > 1 || n > len(x.steps) {
		return nil, nil, nil
	}
	s = &x.steps[max(n, 1)-1]
	switch {
	case !q.Approve:
		if s.state == disapproved && s.reason != nil && s.reason.Why == deniedBy(q) {
			return x, s, nil
		}
	case s.approved != approvedBy(q, x, s):
	case q.Kind == "" || q.Kind == wire.PermitOnce:
		return x, s, nil
	default:
		a := govern.Asked{Tool: s.tool, Scope: s.scope, Digest: s.digest, Token: x.who.Token}
		want, r := govern.NewPermit(q, a, x.id, t.Now())
		if r != nil {
			break
		}
		for _, p := range e.cfg.Book.List() {
			if p.Execution == x.id && p.Tool == want.Tool && p.Kind == want.Kind && p.Scope == want.Scope && p.Digest == want.Digest && p.By == want.By &&
				(p.Kind != wire.PermitFor || p.Until.Sub(p.At) == want.Until.Sub(want.At)) {
				return x, s, &p
			}
		}
	}
	return nil, nil, nil
}

func noWaiting(id string) *deny.Reason {
	return tool.Refuse(deny.ToolMissing, named(id), "no call of that id waits", "`sudo bulkhead approvals` shows what waits; it may be decided, taken back or over")
}

// waitingStep finds the step that a person means. Of several steps the number has to be
// said: which one waits may have changed since somebody looked.
func waitingStep(t *store.Tx, id string, n int) (*execution, *step, error) {
	x, err := load(t, id)
	if err != nil {
		if asReason(err) != nil {
			return nil, nil, noWaiting(id)
		}
		return nil, nil, err
	}
	if n == 0 && len(x.steps) == 1 {
		n = 1
	}
	if n == 0 {
		return nil, nil, tool.Refuse(deny.ToolInvalid, id, "this execution has several steps, and the one that is meant is not said", "name it as `sudo bulkhead approvals` does, like "+id+".2")
	}
	if n > len(x.steps) || x.steps[n-1].state != waiting || !t.Now().Before(x.steps[n-1].expires) {
		return nil, nil, noWaiting(id)
	}
	return x, &x.steps[n-1], nil
}

// disapprove ends a step that a person denied. The same call is not asked again for a
// while: a person who is asked until he says yes has decided nothing.
func (e *Executions) disapprove(t *store.Tx, x *execution, s *step, q wire.DecideRequest) error {
	why := deniedBy(q)
	s.state, s.over, s.expires = disapproved, t.Now(), time.Time{}
	s.reason = tool.Refuse(deny.ToolDisapproved, s.tool, why, "do not try to do the same in another way; the same call is asked again in an hour at the earliest")
	s.reason.Execution = x.id
	raw, err := json.Marshal(s.reason)
	if err != nil {
		return err
	}
	if _, err := t.Exec("DELETE FROM refusal WHERE until <= ?", ms(t.Now())); err != nil {
		return err
	}
	_, err = t.Exec("INSERT INTO refusal (digest, token, until, reason) VALUES (?, ?, ?, ?) ON CONFLICT (digest, token) DO UPDATE SET until = excluded.until, reason = excluded.reason",
		s.digest, x.who.Token, ms(t.Now().Add(refusedFor)), raw)
	return err
}

// decided is the record of a decision.
func (e *Executions) decided(x *execution, s *step, q wire.DecideRequest, p *wire.Permit) record.Record {
	r := record.Record{
		SchemaVersion: record.SchemaVersion, Time: e.cfg.Now().UTC(), Team: x.who.Team, Agent: e.cfg.Agent, Kind: record.Approval,
		Verdict: record.Allowed, Target: s.tool, Token: x.who.Token, Detail: x.name(s) + " approved",
	}
	if !q.Approve {
		r.Verdict, r.Reason, r.Detail = record.Denied, s.reason, x.name(s)+" denied"
	}
	if p != nil {
		r.Detail += ", with grant " + p.ID + " (" + p.Kind + ")"
	}
	r.Detail += fmt.Sprintf(", by the operator with user id %d", q.By)
	return r
}

// Approvals gives the calls that wait, the oldest first; with an id that one alone, and
// more of its input.
func (e *Executions) Approvals(ctx context.Context, id string) ([]wire.Approval, *deny.Reason) {
	only, n := "", 0
	if id != "" {
		var ok bool
		if only, n, ok = splitID(id); !ok {
			return nil, noWaiting(id)
		}
	}
	out := []wire.Approval{}
	type at struct {
		id string
		n  int
	}
	err := e.cfg.Store.View(ctx, func(t *store.Tx) error {
		out = out[:0]
		var list []at
		if err := t.Query("SELECT execution, n FROM step WHERE state = 'waiting' AND expires > ? ORDER BY expires, execution", func(row []sqlite.Value) error {
			list = append(list, at{sqlite.Text(row[0]), int(sqlite.Int(row[1]))})
			return nil
		}, ms(t.Now())); err != nil {
			return err
		}
		for _, one := range list {
			if only != "" && (one.id != only || n != 0 && one.n != n) {
				continue
			}
			x, err := load(t, one.id)
			if err != nil {
				return err
			}
			raw, err := x.input(t, one.n)
			if err != nil {
				return err
			}
			most := shortText
			if only != "" {
				most = wholeText
			}
			s := &x.steps[one.n-1]
			out = append(out, wire.Approval{
				ID: x.name(s), Tool: s.tool, Step: s.n, Steps: len(x.steps), Scope: s.scope, Token: x.who.Token,
				Since: s.since, Until: s.expires, Digest: s.digest, Paused: x.state == Paused, Given: e.given(s.tool, raw, most),
			})
		}
		return nil
	})
	if err != nil {
		return nil, reasonOf(err, "approvals", e.cfg.Log)
	}
	if id != "" && len(out) == 0 {
		return nil, noWaiting(id)
	}
	return out, nil
}

// given shows the fields of an input as the tool understands them.
func (e *Executions) given(name string, raw []byte, most int) []wire.Given {
	out := []wire.Given{}
	var t *tool.Tool
	if calls := e.cfg.Calls(); calls != nil {
		t = calls.Find(name)
	}
	if t == nil { // the manifest has changed: it cannot be done any more either
		return append(out, shorten("input", "text", string(raw), most))
	}
	in, reason := t.Parse(raw)
	if reason != nil {
		return append(out, shorten("input", "text", string(raw), most))
	}
	return fields(t, in, most)
}

// fields shows what a tool understood of an input.
func fields(t *tool.Tool, in tool.Input, most int) []wire.Given {
	out := []wire.Given{}
	for i := range t.Fields {
		v, ok := in[t.Fields[i].Name]
		if !ok {
			continue
		}
		form, text := "json", ""
		switch v := v.(type) {
		case string:
			form, text = "text", v
		case []byte:
			form, text = "text", string(v)
			if !utf8.Valid(v) {
				g := shorten(t.Fields[i].Name, "base64", base64.StdEncoding.EncodeToString(v), most/4*4)
				g.Bytes = int64(len(v))
				out = append(out, g)
				continue
			}
		default:
			enc, err := json.Marshal(v)
			if err != nil {
				continue // it was JSON before
			}
			text = string(enc)
		}
		out = append(out, shorten(t.Fields[i].Name, form, text, most))
	}
	return out
}

// shown refuses an input that no person could be shown whole: what is approved is what
// was seen.
func shown(t *tool.Tool, in tool.Input) *deny.Reason {
	for _, g := range fields(t, in, wholeText) {
		if g.Cut {
			return tool.Refuse(deny.ToolTooLarge, t.Name, fmt.Sprintf("a person approves this call first, and %s has more than the %d bytes that one is shown", g.Name, wholeText),
				"send less at once; or ask the operator for a grant, with a call that is smaller")
		}
	}
	return nil
}

func shorten(name, form, text string, most int) wire.Given {
	g := wire.Given{Name: name, Form: form, Text: text, Bytes: int64(len(text))}
	g.Text = head(text, most)
	g.Cut = len(g.Text) < len(text)
	return g
}
