package store

import (
	"context"
	"math"
	"runtime"
	"time"
)

// smallBody is what stays in memory until it is acknowledged, up to
// bodyMemory together; the rest is read when it is delivered.
const (
	smallBody  = 64 << 10
	bodyMemory = 32 << 20
)

// do has the writer do o and waits until that is on disk.
func (a *Adapter) do(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.finish = make(chan error, 1)
	if err := a.intake.put(o); err != nil {
		return err
	}
	select {
	case err := <-o.finish:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write does what others asked for, and what time asks for. Only who has the turn
// changes the database and what is in memory of it: one at a time commits what many
// asked for at once, so that they share one fsync.
func (a *Adapter) write() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-a.intake.wake:
		case <-timer.C:
		case <-a.stop:
			if a.intake.empty() {
				return
			}
		}
		a.turn.Lock()
		a.round()
		wait, ok := a.core.idle(a.mono())
		if a.alarm = a.mono() + wait; !ok {
			a.alarm = never
		}
		a.turn.Unlock()
		if ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

const never = time.Duration(math.MaxInt64)

// Commit has what was submitted done, and is called after Submit by one that has
// nothing else to do meanwhile: the caller does it itself, because waking the
// writer can cost as much as the rest. When somebody has the turn already, the
// writer goes on after that.
func (a *Adapter) Commit() {
	if !a.turn.TryLock() {
		a.intake.call()
		return
	}
	defer a.turn.Unlock()
	a.round()
	if wait, ok := a.core.idle(a.mono()); ok && a.mono()+wait < a.alarm {
		a.intake.call() // its timer is set anew
	}
}

// CommitAside has what was submitted done by the writer.
func (a *Adapter) CommitAside() { a.intake.call() }

// round does what waits, by one who has the turn.
func (a *Adapter) round() {
	// Those that were just answered get to ask again before the next commit, when
	// they were several: to let others go first wakes a thread, for nothing if
	// there are none.
	if a.several {
		runtime.Gosched()
	}
	a.ops = a.intake.take(a.ops[:0])
	a.batch(a.ops)
	a.several = len(a.ops) > 1 || len(a.ops) == 1 && a.ops[0].cost > 1
	clear(a.ops)
}

// idle is how long nothing is to be done when nobody asks; false: for ever.
func (c *core) idle(mono time.Duration) (time.Duration, bool) {
	at, ok := c.nextNotice()
	if len(c.due) > 0 && (!ok || c.due[0].due < at) {
		at, ok = c.due[0].due, true
	}
	return max(at-mono, 0), ok
}

// batch does ops in one transaction and answers them.
func (a *Adapter) batch(ops []*op) {
	t := a.core.newTxn(a.clock(), a.mono())
	err := a.mend()
	before := a.core.counts
	if err == nil {
		t.core = a.core
		t.expire()
		t.expireRequests()
		for _, o := range ops {
			if o.run != nil {
				o.run(t)
			}
			if t.err != nil {
				break
			}
		}
		t.notify()
		t.serve()
		fresh := append([]*record{}, t.messages...)
		begin := time.Now()
		wrote := t.begun || len(t.messages)+len(t.dirty) > 0
		if err = t.commit(); err == nil {
			if wrote {
				a.core.counts.Commit.observe(time.Since(begin))
			}
			a.core.forget(fresh)
			if len(fresh) > 0 {
				a.core.news()
			}
			for _, f := range t.after {
				f()
			}
		}
	}
	if err != nil {
		a.core.counts = before // what was counted is undone with the rest
		a.undo(t, err)
		err = failed(err)
	}
	for _, o := range ops {
		if o.after != nil && err == nil {
			o.after(a.core.db)
		}
		if o.done != nil {
			o.done(err)
			continue
		}
		o.finish <- err
	}
	t.letGo()
	a.publish()
}

// forget frees bodies that are too large to be kept in memory.
func (c *core) forget(fresh []*record) {
	for _, m := range fresh {
		if m.refs > 0 && (m.size > smallBody || c.cached > bodyMemory) {
			c.cached -= m.size
			m.body = nil
		}
	}
}

// undo has memory read anew before the next transaction. Whoever waits for
// messages is told to ask again.
func (a *Adapter) undo(t *txn, err error) {
	a.log.Error("message store cannot be written", "error", err, "effect", "what was asked for is refused; nothing that was acknowledged is lost")
	for _, ws := range a.core.waiters {
		t.served = append(t.served, ws...)
	}
	clear(a.core.waiters)
	for _, w := range t.served {
		w.out, w.err = nil, failed(err)
		close(w.ready)
	}
	a.core.counts.Failed++
	a.broken = true
	a.reopen = a.reopen || !full(err)
}
