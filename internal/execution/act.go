package execution

import (
	"context"
	"fmt"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// act is something that is done to an execution as a whole.
type act string

const (
	paused    act = wire.ExecutionPause
	resumed   act = wire.ExecutionResume
	cancelled act = wire.ExecutionCancel
	retried   act = "retry" // by who asked for it alone
)

// acts makes the tool of an act.
func (e *Executions) acts(a act) func(context.Context, *tool.Call) (any, error) {
	return func(ctx context.Context, c *tool.Call) (any, error) {
		var out *Shown
		id := c.In.String("executionId")
		err := e.cfg.Store.Update(ctx, func(t *store.Tx) error {
			x, err := own(t, id, c.Caller)
			if err != nil {
				return err
			}
			if r := x.act(t, a, 0, false); r != nil {
				return r
			}
			t.Record(c.Take())
			if err := x.finish(t, a); err != nil {
				return err
			}
			out, err = x.shown(t, 0)
			return err
		})
		if err != nil {
			return nil, err
		}
		e.done(id, a)
		return out, nil
	}
}

// act changes the state, or says why not. An operator's pause is the operator's to end.
func (x *execution) act(t *store.Tx, a act, by uint32, operator bool) error {
	conflict := func(why, mend string) error {
		return tool.Refuse(deny.ToolConflict, string(a)+" "+x.id, why, mend)
	}
	who := "by who asked for it"
	if operator {
		who = fmt.Sprintf("by the operator with user id %d", by)
	}
	switch {
	case a == retried && !x.state.ended():
		return conflict("it has not ended: "+string(x.state), "execution_inspect says how it stands")
	case a == retried && x.outcome() == Completed:
		return conflict("all of its steps were done", "start another one to have them done again")
	case a != retried && x.state.ended():
		return conflict("it has ended already: "+string(x.state), "execution_inspect says how")
	case a == resumed && x.state != Paused:
		return conflict("it is not paused: "+string(x.state), "execution_inspect says how it stands")
	case a == resumed && x.held && !operator:
		return conflict("an operator paused it: "+x.why, "the operator has it go on with `sudo bulkhead execution resume`")
	}
	switch a {
	case paused:
		if x.held && !operator {
			return nil // it stays the operator's
		}
		x.state, x.held, x.why = Paused, operator, "paused "+who
	case resumed:
		x.state, x.held, x.why = Queued, false, ""
	case cancelled:
		x.state, x.held, x.why = Cancelled, false, "cancelled "+who
	case retried:
		x.state, x.why = Queued, ""
		for i := range x.steps {
			s := &x.steps[i]
			if s.state == done {
				continue
			}
			if s.state == running { // of one that was cancelled
				return conflict("step "+fmt.Sprint(s.n)+" is still ending", "try again in a moment")
			}
			if err := x.letGo(t, s.n); err != nil {
				return err
			}
			s.unsure = s.unsure || s.state == failed && s.touched
			s.touched = false
			s.state, s.approved, s.expires, s.began, s.over, s.reason = pending, "", time.Time{}, time.Time{}, time.Time{}, nil
		}
	}
	return nil
}

// finish writes what act changed.
func (x *execution) finish(t *store.Tx, a act) error {
	if a == retried {
		if r := tooMany(t, x.who.Token); r != nil {
			return r
		}
		for i := range x.steps {
			if x.steps[i].state == pending {
				if err := x.put(t, &x.steps[i]); err != nil {
					return err
				}
			}
		}
	}
	return x.advance(t)
}

// done has an act take effect on what is under way.
func (e *Executions) done(id string, a act) {
	if a == cancelled {
		e.stopped(id)
		return
	}
	e.poke()
}

// tooMany bounds the executions of several steps that have not ended, of a caller and of
// all.
func tooMany(t *store.Tx, token string) error {
	const open = "SELECT count(*) FROM execution WHERE direct = 0 AND state NOT IN " + endedStates
	all, err := t.Int(open)
	if err != nil {
		return err
	}
	own, err := t.Int(open+" AND token = ?", token)
	if err != nil || own < maxOpen && all < allCallers*maxOpen {
		return err
	}
	r := tool.Refuse(deny.ToolRate, "execution", fmt.Sprintf("%d executions of this caller, and %d of this agent, have not ended", own, all), "wait for some to end, or cancel them")
	r.RetryAfter = 10
	return r
}

// Act does what an operator asks. Whoever calls it has made sure that it was root.
func (e *Executions) Act(ctx context.Context, q wire.ExecutionRequest) *deny.Reason {
	a := act(q.Action)
	if a != paused && a != resumed && a != cancelled {
		return tool.Refuse(deny.ToolInvalid, q.ID, fmt.Sprintf("%.20q is nothing that an operator does to an execution", q.Action), "one of pause, resume, cancel")
	}
	id, n, ok := splitID(q.ID)
	if !ok || n != 0 {
		return missing(q.ID)
	}
	err := e.cfg.Store.Update(ctx, func(t *store.Tx) error {
		x, err := load(t, id)
		if err != nil {
			return err
		}
		if err := x.act(t, a, q.By, true); err != nil {
			return err
		}
		t.Record(record.Record{
			SchemaVersion: record.SchemaVersion, Time: e.cfg.Now().UTC(), Team: x.who.Team, Agent: e.cfg.Agent, Kind: record.Approval, Verdict: record.Allowed,
			Target: "execution " + x.id, Token: x.who.Token, Detail: fmt.Sprintf("%s, by the operator with user id %d", a, q.By),
		})
		return x.finish(t, a)
	})
	if err != nil {
		return reasonOf(err, id, e.cfg.Log)
	}
	e.done(id, a)
	return nil
}

// Bounds of what an operator is shown: a frame has 4 MiB.
const (
	maxOperators = 200
	maxShown     = 2000 // steps
	maxWhy       = 200  // bytes of why one was not done
)

// List gives the executions, the newest first, without what they answered: those that
// have not ended, or all.
func (e *Executions) List(ctx context.Context, all bool) ([]wire.Execution, *deny.Reason) {
	out := []wire.Execution{}
	err := e.cfg.Store.View(ctx, func(t *store.Tx) error {
		out = out[:0]
		where := ""
		if !all {
			where = " WHERE state NOT IN " + endedStates
		}
		list, err := ids(t, maxOperators, "SELECT id FROM execution"+where+" ORDER BY created DESC, id")
		if err != nil {
			return err
		}
		steps := 0
		for _, id := range list {
			x, err := load(t, id)
			if err != nil {
				return err
			}
			if steps += len(x.steps); steps > maxShown {
				break
			}
			one := wire.Execution{ID: x.id, State: string(x.state), Token: x.who.Token, Created: x.created, Changed: x.changed, Detail: x.why, Steps: []wire.ExecutionStep{}}
			for i := range x.steps {
				s := wire.ExecutionStep{Step: x.steps[i].n, Tool: x.steps[i].tool, State: x.steps[i].state}
				if r := x.steps[i].reason; r != nil {
					s.Why = head(r.Why, maxWhy)
				}
				one.Steps = append(one.Steps, s)
			}
			out = append(out, one)
		}
		return nil
	})
	if err != nil {
		return nil, reasonOf(err, "executions", e.cfg.Log)
	}
	return out, nil
}
