package execution

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/govern"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// How many may wait for a person, and how many executions of several steps be open, is
// for each caller: one who asks for much leaves room for others. All together have
// allCallers times as much, and no more wait than people can be shown.
const (
	allCallers = 4
	maxWaiting = 64
)

// digestOf identifies what an input means to a tool.
func digestOf(name string, in tool.Input) string {
	raw, err := json.Marshal(map[string]any(in))
	if err != nil {
		raw = nil // only values that were JSON before
	}
	sum := sha256.Sum256(append([]byte(name+"\n"), raw...))
	return hex.EncodeToString(sum[:])
}

// asked is a call as grants look at it. One whose destination cannot be told is no
// call that anybody could decide about.
func asked(t *tool.Tool, in tool.Input, token string) (a govern.Asked, reason *deny.Reason) {
	a = govern.Asked{Tool: t.Name, Token: token, Digest: digestOf(t.Name, in)}
	if t.Scope == nil {
		return a, nil
	}
	a.Scope, reason = t.Scope(in)
	if reason == nil && a.Scope == "" { // it would be any destination to a grant
		reason = tool.Refuse(deny.ToolInvalid, t.Name, "where this call goes cannot be told", "name its destination")
	}
	return a, reason
}

type stepKey struct{}

// atStep is where a call belongs that is done for an execution.
type atStep struct {
	id string
	n  int
}

// Pass implements tool.Gate.
func (e *Executions) Pass(ctx context.Context, c *tool.Call, input []byte, whole bool) (by string, reason *deny.Reason) {
	if !e.cfg.Asks(c.Tool.Name) {
		return "", nil
	}
	a, reason := asked(c.Tool, c.In, c.Caller.Token)
	if reason != nil {
		return "", reason
	}
	if !whole {
		a.Digest = "" // a grant for one input does not know the rest
	}
	at, isStep := ctx.Value(stepKey{}).(atStep)
	by, ok := e.cfg.Book.Find(a)
	if ok && isStep {
		if err := e.touch(ctx, at); err != nil {
			return "", reasonOf(err, c.Tool.Name, e.cfg.Log)
		}
		by, ok = e.cfg.Book.Find(a) // it may have been revoked meanwhile
	}
	if ok {
		return by, nil
	}
	if !whole {
		return "", tool.Refuse(deny.ToolApproval, c.Tool.Name, "a person approves this call first (ask.tools), and one that comes as a stream cannot be kept until then",
			"send it whole, by POST /v1/tools/"+c.Tool.Name+"; or ask the operator for a grant")
	}
	if len(input) > maxInput {
		return "", tool.TooLarge(c.Tool.Name+", which a person approves first,", maxInput)
	}
	if reason := shown(c.Tool, c.In); reason != nil {
		return "", reason
	}
	ctx = context.WithoutCancel(ctx) // who hangs up has asked
	var told *record.Record
	err := e.cfg.Store.Update(ctx, func(t *store.Tx) (err error) {
		told = nil
		if isStep {
			reason, told, err = e.waitAt(t, at, c, a)
		} else {
			reason, told, err = e.keep(t, c, a, input)
		}
		if err == nil {
			t.Record(c.Denied(reason))
		}
		return err
	})
	if err != nil {
		return "", reasonOf(err, c.Tool.Name, e.cfg.Log)
	}
	c.Written()
	if told != nil {
		e.cfg.Tell(*told)
		e.poke()
	}
	return "", reason
}

// keep makes an execution of a call, or finds the one that it has.
func (e *Executions) keep(t *store.Tx, c *tool.Call, a govern.Asked, input []byte) (*deny.Reason, *record.Record, error) {
	if r, err := refused(t, a); err != nil || r != nil {
		return r, nil, err
	}
	same, err := ids(t, 1, "SELECT e.id FROM step s JOIN execution e ON e.id = s.execution WHERE s.digest = ? AND e.token = ? AND e.direct = 1 AND e.state NOT IN "+endedStates, a.Digest, a.Token)
	if err != nil {
		return nil, nil, err
	}
	if len(same) == 1 {
		x, err := load(t, same[0])
		if err != nil {
			return nil, nil, err
		}
		return e.waits(x, &x.steps[0]), nil, nil
	}
	if r, err := e.full(t, c.Tool.Name, c.Caller.Token); err != nil || r != nil {
		return r, nil, err
	}
	x := &execution{id: govern.NewID("x"), state: Waiting, direct: true, who: c.Caller, stop: true, steps: []step{{
		n: 1, tool: c.Tool.Name, digest: a.Digest, scope: a.Scope, state: waiting, since: t.Now(), expires: t.Now().Add(e.cfg.Expire),
	}}}
	if err := x.insert(t, [][]byte{input}); err != nil {
		return nil, nil, err
	}
	return e.waits(x, &x.steps[0]), e.line(x, &x.steps[0]), nil
}

// waitAt has a step wait for a person.
func (e *Executions) waitAt(t *store.Tx, at atStep, c *tool.Call, a govern.Asked) (*deny.Reason, *record.Record, error) {
	if r, err := refused(t, a); err != nil || r != nil {
		return r, nil, err
	}
	x, err := load(t, at.id)
	if err != nil {
		return nil, nil, err
	}
	s := &x.steps[at.n-1]
	s.began, s.touched = time.Time{}, false
	full, err := e.full(t, c.Tool.Name, c.Caller.Token)
	if err != nil {
		return nil, nil, err
	}
	if full != nil { // it waits until it may wait
		full.Execution, s.state = x.id, pending
		if err := x.put(t, s); err != nil {
			return nil, nil, err
		}
		return full, nil, x.advance(t)
	}
	s.state, s.since, s.expires = waiting, t.Now(), t.Now().Add(e.cfg.Expire)
	if err := x.put(t, s); err != nil {
		return nil, nil, err
	}
	return e.waits(x, s), e.line(x, s), x.advance(t)
}

// refused says whether a person has denied the same call a while ago.
func refused(t *store.Tx, a govern.Asked) (r *deny.Reason, err error) {
	err = t.Query("SELECT reason FROM refusal WHERE digest = ? AND token = ? AND until > ?", func(row []sqlite.Value) error {
		r = &deny.Reason{}
		return json.Unmarshal(sqlite.Blob(row[0]), r)
	}, a.Digest, a.Token, ms(t.Now()))
	return r, err
}

// full says whether as many calls wait as may, of a caller or of all.
func (e *Executions) full(t *store.Tx, name, token string) (*deny.Reason, error) {
	all, err := t.Int("SELECT count(*) FROM step WHERE state = 'waiting'")
	if err != nil {
		return nil, err
	}
	own, err := t.Int("SELECT count(*) FROM step s JOIN execution e ON e.id = s.execution WHERE s.state = 'waiting' AND e.token = ?", token)
	if err != nil || own < int64(e.cfg.Waiting) && all < int64(min(allCallers*e.cfg.Waiting, maxWaiting)) {
		return nil, err
	}
	r := tool.Refuse(deny.ToolRate, name, fmt.Sprintf("%d calls of this caller, and %d of this agent, wait for a person already", own, all), "wait until some are decided, or take some back with execution_cancel")
	r.RetryAfter = 60
	return r, nil
}

// name is how a person names a step that waits: the execution, and of several steps
// which one.
func (x *execution) name(s *step) string {
	if len(x.steps) == 1 {
		return x.id
	}
	return fmt.Sprintf("%s.%d", x.id, s.n)
}

// waits is what a caller is told whose call is kept.
func (e *Executions) waits(x *execution, s *step) *deny.Reason {
	why := "a person has to approve this call first; it is kept as execution " + x.id
	mend := "do not repeat the call: go on with something else, and look with execution_inspect {\"executionId\": \"" + x.id + "\"}"
	switch s.state {
	case waiting:
		why += " and waits until " + s.expires.UTC().Format(time.RFC3339) + "; nothing has been done yet"
		mend += "; the operator decides with `sudo bulkhead approve " + e.cfg.Agent + " " + x.name(s) + "`"
	case running:
		why += ", which was approved and is being done"
	default:
		why += ", which was approved and is " + string(x.state) + "; nothing has been done yet"
	}
	r := tool.Refuse(deny.ToolApproval, s.tool, why, mend)
	r.Execution, r.State = x.id, string(x.state)
	return r
}

// line is what people are told of a call that waits.
func (e *Executions) line(x *execution, s *step) *record.Record {
	return &record.Record{
		Agent: e.cfg.Agent, Kind: record.Approval, Verdict: record.Started, Target: s.tool, Token: x.who.Token,
		Detail: x.name(s) + " waits for a person until " + s.expires.UTC().Format(time.RFC3339) + ": `sudo bulkhead approvals " + e.cfg.Agent + "`",
	}
}

// reasonOf gives the reason of an error of the store's.
func reasonOf(err error, what string, log *slog.Logger) *deny.Reason {
	if r := asReason(err); r != nil {
		return r
	}
	log.Error("executions cannot be written", "error", err)
	return tool.Refuse(deny.ToolFailed, what, "the execution could not be kept; the operator's log says why", "try again; if it fails again, tell the operator")
}
