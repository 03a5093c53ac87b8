package execution

import (
	"context"
	"time"

	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/wire"
)

// Places of executions that are at work at a time. Calls that a person approved have
// their own, so that nobody's steps keep them from being done, and no caller has all.
const (
	maxActive  = 4
	maxCallers = maxActive - 1 // of one caller
)

// quietly is when the queue is looked at again that nothing waits in.
const quietly = time.Hour

// atWork is an execution of which a goroutine does the steps.
type atWork struct {
	token  string // of who asked
	direct bool
	cancel context.CancelFunc // of the step's call; nil: none is under way
}

func (e *Executions) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// pump begins what is queued, and says how much waits, whenever it is woken.
func (e *Executions) pump() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.wake:
		case <-timer.C:
		}
		timer.Reset(e.look())
	}
}

// look begins what is queued, and says when to look again at the latest.
func (e *Executions) look() time.Duration {
	type one struct {
		id string
		at atWork
	}
	var queued []one
	var now wire.Asking
	err := e.cfg.Store.View(e.ctx, func(t *store.Tx) (err error) {
		queued = queued[:0]
		if err := t.Query("SELECT id, token, direct FROM execution WHERE state = 'queued' ORDER BY created, id", func(row []sqlite.Value) error {
			queued = append(queued, one{sqlite.Text(row[0]), atWork{token: sqlite.Text(row[1]), direct: sqlite.Int(row[2]) == 1}})
			return nil
		}); err != nil {
			return err
		}
		return t.Query("SELECT count(*), coalesce(min(e.changed), 0) FROM step s JOIN execution e ON e.id = s.execution WHERE s.state = 'waiting' AND s.expires > ?", func(row []sqlite.Value) error {
			now.Waiting, now.Since = int(sqlite.Int(row[0])), at(sqlite.Int(row[1]))
			return nil
		}, ms(t.Now()))
	})
	if err != nil {
		if e.ctx.Err() == nil {
			e.cfg.Log.Error("executions cannot be read", "error", err)
		}
		return again
	}
	e.mu.Lock()
	changed := now != e.asking
	e.asking = now
	next := quietly
	for id, due := range e.later {
		if wait := time.Until(due); wait > 0 {
			next = min(next, wait)
		} else {
			delete(e.later, id)
		}
	}
	for _, q := range queued {
		if _, off := e.later[q.id]; off || e.active[q.id] != nil || !e.place(q.at) || e.ctx.Err() != nil {
			continue
		}
		e.active[q.id] = &q.at
		e.work.Go(func() { e.do(q.id) })
	}
	e.mu.Unlock()
	if changed {
		e.cfg.Changed()
	}
	return next
}

// place says whether there is a place for one more to be at work. e.mu is held.
func (e *Executions) place(w atWork) bool {
	kind, callers := 0, 0
	for _, a := range e.active {
		if a.direct == w.direct {
			kind++
			if a.token == w.token {
				callers++
			}
		}
	}
	return kind < maxActive && callers < maxCallers
}

// Asking is how much waits for a person.
func (e *Executions) Asking() wire.Asking {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asking
}
