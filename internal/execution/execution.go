package execution

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/govern"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// Config is what executions work with.
type Config struct {
	Agent string
	Store *store.Store
	Book  *govern.Book
	// Asks says whether calls of a tool wait for a person; Expire is how long, and
	// Waiting how many may at a time.
	Asks    func(name string) bool
	Expire  time.Duration
	Waiting int
	// Calls gives the table that does the steps, once it is there.
	Calls func() *tool.Dispatcher
	// Still says whether who asked may still call. An error that is Unknown is one
	// that may pass.
	Still   func(tool.Caller) error
	Unknown error
	// Undo takes back what tools did, by their names; others cannot be.
	Undo map[string]Undoer
	// Tell hears of what a person should: it is a line of the log.
	Tell func(record.Record)
	// Changed is called when [Executions.Asking] has changed.
	Changed func()
	Log     *slog.Logger
	Now     func() time.Time // nil: time.Now
}

func (c *Config) setDefaults() {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Tell == nil {
		c.Tell = func(record.Record) {}
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Still == nil {
		c.Still = func(tool.Caller) error { return nil }
	}
}

// Executions are those of one agent. Its methods may be called concurrently.
type Executions struct {
	cfg  Config
	wake chan struct{}
	ctx  context.Context // of the steps
	end  context.CancelFunc
	work sync.WaitGroup

	undoing sync.Mutex // over a rollback

	mu     sync.Mutex
	rolled string // the execution that is rolled back
	active map[string]*atWork
	later  map[string]time.Time // of what was put off: not before
	asking wire.Asking
}

// Open makes the tables, and settles what an earlier gateway left.
func Open(ctx context.Context, cfg Config) (*Executions, error) {
	cfg.setDefaults()
	e := &Executions{cfg: cfg, wake: make(chan struct{}, 1), active: map[string]*atWork{}, later: map[string]time.Time{}}
	if err := cfg.Store.Migrate(ctx, "execution", schema); err != nil {
		return nil, err
	}
	if err := cfg.Store.Update(ctx, recoverAll); err != nil {
		return nil, fmt.Errorf("executions: %w", err)
	}
	cfg.Store.Expire(e.expire)
	cfg.Store.Spare(e.spare)
	e.ctx, e.end = context.WithCancel(context.WithoutCancel(ctx))
	return e, nil
}

// Run begins to do what is queued. It is called once, when the table is there.
func (e *Executions) Run() {
	e.work.Go(e.pump)
	e.poke()
}

// Close ends what is at work and waits for it.
func (e *Executions) Close() error {
	e.end()
	e.work.Wait()
	return nil
}

// errUncertain is the reason of a step during which the gateway ended.
func errUncertain(name string) *deny.Reason {
	return tool.Refuse(deny.ToolFailed, name, "the gateway ended while this call was being done: it may or may not have been done", "look whether it was done before you ask for it again")
}

// recoverAll settles the steps that were being done when the gateway ended.
func recoverAll(t *store.Tx) error {
	list, err := ids(t, maxKept, "SELECT id FROM execution WHERE state NOT IN "+endedStates)
	if err != nil {
		return err
	}
	// A cancelled one has ended, and its last step may have been under way.
	more, err := ids(t, maxKept, "SELECT execution FROM step WHERE state = 'running'")
	if err != nil {
		return err
	}
	for _, id := range append(list, more...) {
		x, err := load(t, id)
		if err != nil {
			return err
		}
		for i := range x.steps {
			s := &x.steps[i]
			if s.state == running && !s.touched { // it came as far as the gate
				s.state, s.began = pending, time.Time{}
				if err := x.put(t, s); err != nil {
					return err
				}
			}
			if s.state == running {
				s.state, s.over, s.reason = failed, t.Now(), errUncertain(s.tool)
				if err := x.put(t, s); err != nil {
					return err
				}
				if err := x.chargeUndo(t, s.n); err != nil {
					return err
				}
			}
		}
		if err := x.advance(t); err != nil {
			return err
		}
	}
	return nil
}
