package execution

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// again is when a step is looked at again of which cannot be told whether its owner may
// still call.
const again = 2 * time.Second

// errStopped says that an execution is not to go on now.
var errStopped = errors.New("execution: stopped")

// do does the steps of an execution until it ends, waits, or is not to go on.
func (e *Executions) do(id string) {
	defer func() {
		e.mu.Lock()
		delete(e.active, id)
		e.mu.Unlock()
		e.poke()
	}()
	for e.ctx.Err() == nil {
		err := e.next(id)
		switch {
		case err == nil:
		case errors.Is(err, errStopped):
			return
		default:
			wait := later(again)
			if !errors.As(err, &wait) && e.ctx.Err() == nil {
				e.cfg.Log.Error("an execution cannot go on now", "execution", id, "error", err)
			}
			e.mu.Lock()
			e.later[id] = time.Now().Add(time.Duration(wait))
			e.mu.Unlock()
			return
		}
	}
}

// later is the error of an execution that cannot go on now and is tried again after that
// time. Until then others have its place.
type later time.Duration

func (l later) Error() string { return "execution: not within " + time.Duration(l).String() }

// pause waits; false: everything ends.
func (e *Executions) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.ctx.Done():
		return false
	}
}

// next does the first step that has not ended.
func (e *Executions) next(id string) error {
	x, s, input, err := e.first(id)
	if err != nil {
		return err
	}
	if err := e.cfg.Still(x.who); err != nil {
		if e.cfg.Unknown != nil && errors.Is(err, e.cfg.Unknown) {
			return later(again)
		}
		return e.denied(x, s, tool.Refuse(deny.BadToken, s.tool, "the token of who asked is not good any more: "+err.Error(), "ask again with another token"))
	}
	calls := e.cfg.Calls()
	if calls == nil {
		return errStopped
	}
	if reason := unchanged(calls, s, input); reason != nil {
		return e.denied(x, s, reason)
	}
	a, reason := calls.Admit(e.ctx, x.who, s.tool)
	if reason != nil {
		if reason.Code == deny.ToolRate {
			return later(time.Duration(max(1, reason.RetryAfter)) * time.Second)
		}
		return e.over(x, s.n, false, nil, reason)
	}
	ctx, cancel := context.WithCancel(tool.WithKeeper(context.WithValue(e.ctx, stepKey{}, atStep{id, s.n}), e.keeper(id, s.n)))
	defer cancel()
	e.cancels(id, cancel) // before: who cancels from now on finds it
	defer e.cancels(id, nil)
	if s, err = e.begin(id, s.n); err != nil {
		_ = a.Refuse(e.ctx, tool.Refuse(deny.ToolConflict, x.id, "the execution of this call was stopped before it began", "execution_inspect says how it stands"))
		return err
	}
	if s.state == granted {
		a.Approved(s.approved)
	}
	answer, reason := a.Run(ctx, input)
	if reason != nil && reason.Execution == id { // the gate has written it down
		switch reason.Code {
		case deny.ToolApproval:
			return nil // it waits
		case deny.ToolRate:
			return later(again) // too many do
		}
	}
	return e.over(x, s.n, a.Touched(), answer, reason)
}

// denied ends a step that no dispatcher has seen, and so is on no record yet.
func (e *Executions) denied(x *execution, s *step, r *deny.Reason) error {
	if err := e.cfg.Store.Write(context.WithoutCancel(e.ctx), record.Record{
		SchemaVersion: record.SchemaVersion, Time: time.Now().UTC(), Team: x.who.Team, Agent: e.cfg.Agent, Kind: record.Tool, Verdict: record.Denied,
		Target: s.tool, Token: x.who.Token, Detail: x.name(s), Reason: r.ForRecord(),
	}); err != nil {
		return later(again)
	}
	return e.over(x, s.n, false, nil, r)
}

// unchanged says whether the input means to the tool what it meant when it was asked
// for: a newer program may read it otherwise, a newer manifest send it elsewhere.
func unchanged(calls *tool.Dispatcher, s *step, input []byte) *deny.Reason {
	t := calls.Find(s.tool)
	if t == nil {
		return nil // the table says it
	}
	in, reason := t.Parse(input)
	if reason != nil {
		return reason
	}
	a, reason := asked(t, in, "")
	if reason != nil {
		return reason
	}
	if a.Digest != s.digest || a.Scope != s.scope {
		return tool.Refuse(deny.ToolConflict, s.tool, "the input means something else to this build or manifest than when it was asked for", "ask again")
	}
	return nil
}

// first gives the step that is next, or errStopped.
func (e *Executions) first(id string) (x *execution, s *step, input []byte, err error) {
	err = e.cfg.Store.View(e.ctx, func(t *store.Tx) (err error) {
		if x, err = load(t, id); err != nil {
			return err
		}
		if x.state != Queued && x.state != Running {
			return errStopped
		}
		for i := range x.steps {
			if s = &x.steps[i]; s.state == pending || s.state == granted {
				if s.state == pending && e.cfg.Asks(s.tool) && !e.granted(*s, x.who.Token) {
					switch r, err := e.full(t, s.tool, x.who.Token); {
					case err != nil:
						return err
					case r != nil:
						return later(again)
					}
				}
				input, err = x.input(t, s.n)
				return err
			}
		}
		return errStopped
	})
	if asReason(err) != nil {
		err = errStopped // it is gone
	}
	return x, s, input, err
}

// begin writes down that a step's call begins, unless somebody stopped it meanwhile, and
// gives the step as it was. One that has yet to pass the gate has not touched anything.
func (e *Executions) begin(id string, n int) (was *step, err error) {
	lapsed := false
	err = e.cfg.Store.Update(e.ctx, func(t *store.Tx) error {
		x, err := load(t, id)
		if err != nil {
			return err
		}
		s := &x.steps[n-1]
		if x.state != Queued && x.state != Running || s.state != pending && s.state != granted {
			return errStopped
		}
		if lapsed = s.state == granted && s.late(t.Now()); lapsed {
			if err := e.lapse(t, x, s); err != nil {
				return err
			}
			return x.advance(t)
		}
		before := *s
		was = &before
		s.touched = s.state == granted || !e.cfg.Asks(s.tool)
		s.state, s.began, s.expires = running, t.Now(), time.Time{}
		if err := x.put(t, s); err != nil {
			return err
		}
		return x.advance(t)
	})
	if err == nil && lapsed {
		return nil, errStopped
	}
	return was, err
}

// touch writes down that a step's call passed the gate.
func (e *Executions) touch(ctx context.Context, at atStep) error {
	return e.cfg.Store.Update(context.WithoutCancel(ctx), func(t *store.Tx) error {
		_, err := t.Exec("UPDATE step SET touched = 1 WHERE execution = ? AND n = ? AND state = 'running'", at.id, at.n)
		return err
	})
}

// cancels notes what ends the call of an execution that is under way.
func (e *Executions) cancels(id string, cancel context.CancelFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.active[id]; w != nil {
		w.cancel = cancel
	}
}

// over writes down how a step ended, however long the disk takes to be there for it.
func (e *Executions) over(x *execution, n int, touched bool, answer json.RawMessage, reason *deny.Reason) error {
	for {
		err := e.ended(x.id, x.who.Quota, n, touched, answer, reason)
		if err == nil || asReason(err) != nil && asReason(err).Code == deny.ToolMissing {
			return nil
		}
		e.cfg.Log.Error("how a step of an execution ended cannot be written down yet", "execution", x.id, "step", n, "error", err)
		if !e.pause(again) {
			return errStopped
		}
	}
}

func (e *Executions) ended(id string, quota tool.Quota, n int, touched bool, answer json.RawMessage, reason *deny.Reason) error {
	kept := answer
	if len(kept) > maxAnswer {
		kept, _ = json.Marshal(map[string]any{"notKept": true, "bytes": len(answer)})
	}
	write := func(kept json.RawMessage) error {
		return e.cfg.Store.Update(tool.WithQuota(context.WithoutCancel(e.ctx), quota), func(t *store.Tx) error {
			x, err := load(t, id)
			if err != nil {
				return err
			}
			s := &x.steps[n-1]
			s.state, s.over, s.reason, s.touched = done, t.Now(), reason, touched
			if reason != nil {
				s.state = failed
				if reason.Code == deny.ToolDisapproved {
					s.state = disapproved
				}
			}
			// What failed may have been done all the same, and can be looked at and taken
			// back; of what did not get that far nothing is kept.
			if touched {
				err = x.chargeUndo(t, n)
			} else {
				err = x.dropUndo(t, n)
			}
			if err != nil {
				return err
			}
			if len(kept) > 0 {
				if err := t.Charge(int64(len(kept))); err != nil {
					return err
				}
				x.size += int64(len(kept))
				if _, err := t.Exec("UPDATE step SET answer = ?3 WHERE execution = ?1 AND n = ?2", id, n, []byte(kept)); err != nil {
					return err
				}
			}
			// Last: until then it is at work, and is not spared.
			if err := x.put(t, s); err != nil {
				return err
			}
			return x.advance(t)
		})
	}
	err := write(kept)
	if r := asReason(err); r != nil && r.Code == deny.ToolQuota {
		// That it was done counts for more than what it answered.
		err = write(nil)
	}
	return err
}

// expire implements what [store.Store.Expire] calls: nobody decided in time, or it was
// kept long enough.
func (e *Executions) expire(t *store.Tx) (more bool, err error) {
	const batch = 32
	late, err := ids(t, batch, "SELECT execution FROM step WHERE state = 'waiting' AND expires <= ? LIMIT 32", ms(t.Now()))
	if err != nil {
		return false, err
	}
	lapsed, err := ids(t, batch, "SELECT execution FROM step WHERE state = 'granted' AND expires <= ? LIMIT 32", ms(t.Now()))
	if err != nil {
		return false, err
	}
	full := len(late) == batch || len(lapsed) == batch
	late = append(late, lapsed...)
	for _, id := range late {
		x, err := load(t, id)
		if err != nil {
			return false, err
		}
		for i := range x.steps {
			s := &x.steps[i]
			if s.state != waiting && s.state != granted || !s.late(t.Now()) {
				continue
			}
			if err := e.lapse(t, x, s); err != nil {
				return false, err
			}
		}
		if err := x.advance(t); err != nil {
			return false, err
		}
	}
	old, err := ids(t, batch, "SELECT id FROM execution WHERE state IN "+endedStates+" AND changed <= ? LIMIT 32", ms(t.Now().Add(-keptFor)))
	if err != nil {
		return false, err
	}
	if err := drop(t, old); err != nil {
		return false, err
	}
	if len(late) > 0 {
		t.After(e.poke)
	}
	return full || len(old) == batch, nil
}

// late says whether the time of a step is over that waits, or that was approved and
// has not begun.
func (s *step) late(now time.Time) bool { return !now.Before(s.expires) }

// lapse ends a step whose time is over. An approval is for the circumstances that a
// person saw: who pauses an approved call cannot keep it for others.
func (e *Executions) lapse(t *store.Tx, x *execution, s *step) error {
	until := s.expires.UTC().Format(time.RFC3339)
	why, how, mend := "nobody approved this call until "+until, " is over: nobody decided", "ask again when somebody is there to decide"
	if s.state == granted {
		why, how, mend = "this call was approved and did not begin until "+until, " is over: it was approved and did not begin", "ask again"
	}
	s.state, s.over, s.expires, s.approved = disapproved, t.Now(), time.Time{}, ""
	s.reason = tool.Refuse(deny.ToolDisapproved, s.tool, why, mend)
	s.reason.Execution = x.id
	if err := x.put(t, s); err != nil {
		return err
	}
	t.Record(record.Record{
		SchemaVersion: record.SchemaVersion, Time: t.Now().UTC(), Team: x.who.Team, Agent: e.cfg.Agent, Kind: record.Approval, Verdict: record.Denied,
		Target: s.tool, Token: x.who.Token, Detail: x.name(s) + how, Reason: s.reason,
	})
	return nil
}

// spare implements what [store.Store.Spare] calls: what ended longest ago makes room.
func (e *Executions) spare(t *store.Tx) (more bool, err error) {
	e.mu.Lock()
	rolled := e.rolled
	e.mu.Unlock()
	old, err := ids(t, 1, "SELECT id FROM execution e WHERE state IN "+endedStates+
		" AND id <> ? AND NOT EXISTS (SELECT 1 FROM step WHERE execution = e.id AND state = 'running') ORDER BY changed LIMIT 1", rolled)
	if err != nil {
		return false, err
	}
	return len(old) > 0, drop(t, old)
}
