package execution

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bulkhead/internal/deny"
	"bulkhead/internal/govern"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// Undoer takes back what a call of a tool did, by what the tool kept of it
// ([tool.Keeper]). It refuses with tools.conflict what has changed since, with
// [tool.Never] what cannot be taken back, and does nothing where it was taken back
// already. Exactly one is set.
type Undoer struct {
	InStore func(t *store.Tx, undo []byte) error
	Outside func(ctx context.Context, what string, undo []byte) error
}

// undone is the state of a step that was taken back.
const undone = "undone"

// What became of a step in a rollback.
const (
	nothing    = "nothing to undo" // it was not done
	impossible = "cannot be undone"
	refusedNow = "not undone" // it could be, and was not now
)

// RolledBack is what execution_rollback answers of a step.
type RolledBack struct {
	N       int    `json:"step"`
	Tool    string `json:"tool"`
	Outcome string `json:"outcome"` // undone, cannot be undone, not undone, nothing to undo
	Why     string `json:"why,omitempty"`
}

// keeper keeps what takes a step back, with the step.
func (e *Executions) keeper(id string, n int) tool.Keeper {
	const sql = "UPDATE step SET undo = ?3 WHERE execution = ?1 AND n = ?2"
	return func(tx tool.Exec, undo []byte) error {
		if len(undo) > tool.MaxUndo {
			return nil // it cannot be taken back
		}
		if tx != nil {
			_, err := tx(sql, id, n, undo)
			return err
		}
		return e.cfg.Store.Update(context.WithoutCancel(e.ctx), func(t *store.Tx) error {
			_, err := t.Exec(sql, id, n, undo)
			return err
		})
	}
}

// chargeUndo counts what a step keeps, or lets go of it when there is no room: that it
// was done counts for more.
func (x *execution) chargeUndo(t *store.Tx, n int) error {
	size, err := t.Int("SELECT coalesce(length(undo), 0) FROM step WHERE execution = ? AND n = ?", x.id, n)
	if err != nil || size == 0 {
		return err
	}
	if err := t.Charge(size); err == nil {
		x.size += size
		return nil
	} else if asReason(err) == nil {
		return err
	}
	return x.dropUndo(t, n)
}

// letGo lets go of what a step that ended keeps beside its input, and counts it no more.
func (x *execution) letGo(t *store.Tx, n int) error {
	size, err := t.Int("SELECT coalesce(length(answer), 0) + coalesce(length(undo), 0) FROM step WHERE execution = ? AND n = ?", x.id, n)
	if err != nil || size == 0 {
		return err
	}
	if _, err := t.Exec("UPDATE step SET answer = NULL, undo = NULL WHERE execution = ? AND n = ?", x.id, n); err != nil {
		return err
	}
	x.size -= size
	return t.Charge(-size)
}

// dropUndo lets go of what was not counted yet.
func (x *execution) dropUndo(t *store.Tx, n int) error {
	_, err := t.Exec("UPDATE step SET undo = NULL WHERE execution = ? AND n = ?", x.id, n)
	return err
}

func (x *execution) undoOf(t *store.Tx, n int) (raw []byte, err error) {
	err = t.Query("SELECT undo FROM step WHERE execution = ? AND n = ?", func(row []sqlite.Value) error {
		raw = sqlite.Blob(row[0])
		return nil
	}, x.id, n)
	return raw, err
}

// rollback takes the steps back that were done, the last first, and says of each what
// became of it.
func (e *Executions) rollback(ctx context.Context, c *tool.Call) (any, error) {
	id := c.In.String("executionId")
	var x *execution
	err := e.cfg.Store.View(ctx, func(t *store.Tx) (err error) {
		x, err = own(t, id, c.Caller)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !x.state.ended() {
		return nil, tool.Refuse(deny.ToolConflict, "execution_rollback "+id, "it has not ended: "+string(x.state), "cancel it first")
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // who hangs up has asked for all of it
	e.undoing.Lock()                 // one after the other: two would each see the other's half
	defer e.undoing.Unlock()
	e.rolls(id)
	defer e.rolls("")
	out := make([]RolledBack, len(x.steps))
	for i := range slices.Backward(x.steps) {
		s := x.steps[i]
		out[i] = RolledBack{N: s.n, Tool: s.tool}
		out[i].Outcome, out[i].Why, err = e.undo(ctx, c, id, s.n)
		if err != nil {
			return nil, err
		}
	}
	return map[string]any{"executionId": id, "steps": out}, nil
}

// rolls notes which execution is rolled back.
func (e *Executions) rolls(id string) {
	e.mu.Lock()
	e.rolled = id
	e.mu.Unlock()
}

// undo takes one step back. An error is one of the store's.
func (e *Executions) undo(ctx context.Context, c *tool.Call, id string, n int) (outcome, why string, err error) {
	var s step
	var raw []byte
	err = e.cfg.Store.View(ctx, func(t *store.Tx) error {
		x, err := load(t, id)
		if err != nil {
			return err
		}
		if !x.state.ended() { // it is tried again meanwhile
			return tool.Refuse(deny.ToolConflict, "execution_rollback "+id, "it goes on: "+string(x.state), "cancel it first")
		}
		s = x.steps[n-1]
		raw, err = x.undoOf(t, n)
		return err
	})
	if err != nil {
		return "", "", err
	}
	switch {
	case s.state == running:
		return refusedNow, "its call is still ending; try again in a moment", nil
	case s.unsure:
		return impossible, "it was tried again, and it is not known whether an earlier try was done, too", nil
	case s.state == undone:
		return undone, "", nil
	case s.state == failed && s.touched && len(raw) == 0:
		return impossible, "it is not known whether it was done", nil
	case s.state != done && (s.state != failed || !s.touched):
		return nothing, "it was not done", nil
	}
	calls := e.cfg.Calls()
	u, ok := e.cfg.Undo[s.tool]
	t := (*tool.Tool)(nil)
	if calls != nil {
		t = calls.Find(s.tool)
	}
	switch {
	case !s.touched && (t == nil || !t.Effect):
		return nothing, "it only read", nil
	case !ok:
		return impossible, "nothing takes back what " + s.tool + " does", nil
	case len(raw) == 0:
		return impossible, "what was there before was not kept: it was too large, a folder with what is in it, or tools.memory had no room for it", nil
	case t == nil || !calls.Allows(t):
		return refusedNow, "the manifest does not give " + s.tool + " to the agent any more", nil
	case e.cfg.Asks(s.tool) && !e.granted(s, c.Caller.Token):
		return refusedNow, "a person approves calls of " + s.tool + ", and no grant covers it", nil
	}
	if u.Outside != nil {
		if err := u.Outside(ctx, "execution_rollback", raw); err != nil {
			return e.notUndone(err, s.tool)
		}
	}
	err = e.cfg.Store.Update(ctx, func(t *store.Tx) error {
		x, err := load(t, id)
		if err != nil {
			return err
		}
		if x.steps[n-1].state != s.state {
			return tool.Refuse(deny.ToolConflict, s.tool, "the step has changed meanwhile", "try again")
		}
		if u.InStore != nil {
			if err := u.InStore(t, raw); err != nil {
				return err
			}
		}
		if err := x.letGo(t, n); err != nil {
			return err
		}
		one := &x.steps[n-1]
		one.state, one.reason = undone, nil
		t.Record(record.Record{
			SchemaVersion: record.SchemaVersion, Time: t.Now().UTC(), Team: c.Caller.Team, Agent: e.cfg.Agent, Kind: record.Tool, Verdict: record.Allowed,
			Target: s.tool, Token: c.Caller.Token, Detail: fmt.Sprintf("undone by execution_rollback: execution %s, step %d", id, n),
		})
		x.why = "steps were undone"
		if err := x.put(t, one); err != nil {
			return err
		}
		return x.settle(t)
	})
	if err != nil {
		return e.notUndone(err, s.tool)
	}
	return undone, "", nil
}

// granted says whether a grant covers the step's call, whose undoing it covers, too.
func (e *Executions) granted(s step, token string) bool {
	_, ok := e.cfg.Book.Find(govern.Asked{Tool: s.tool, Scope: s.scope, Digest: s.digest, Token: token})
	return ok
}

func (e *Executions) notUndone(err error, name string) (outcome, why string, _ error) {
	var never tool.Never
	if errors.As(err, &never) {
		return impossible, string(never), nil
	}
	if r := asReason(err); r != nil {
		return refusedNow, r.Why, nil //nolint:nilerr // the refusal is the answer
	}
	e.cfg.Log.Error("a step could not be undone", "tool", name, "error", err)
	return refusedNow, "a fault of the gateway's; the operator's log says which", nil
}

// settle writes what a rollback changed of the execution, whose state stays: that is how
// it ended.
func (x *execution) settle(t *store.Tx) error {
	x.changed = t.Now()
	_, err := t.Exec("UPDATE execution SET changed = ?2, why = ?3, size = ?4 WHERE id = ?1", x.id, ms(x.changed), x.why, x.size)
	return err
}
