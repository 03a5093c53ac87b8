package warden

import (
	"context"
	"errors"
	"sync"
	"time"

	"bulkhead/internal/record"
)

// An adapter is started again for as long as its team runs: without it nobody
// reaches anybody. The wait doubles up to a bound that keeps a recovery well
// under ten seconds, and begins anew after a while of health.
const (
	adapterBackoff    = 200 * time.Millisecond
	adapterMaxBackoff = 4 * time.Second
	adapterHealthy    = time.Minute
)

// start gives the adapter an owner. The returned channel is closed when its
// first attempt to bring it up is over; [adapterRun.outcome] says how it ended.
func (a *adapterRun) start() <-chan struct{} {
	ctx, cancel := context.WithCancel(a.w.ctx)
	done, settled := make(chan struct{}), make(chan struct{})
	a.mu.Lock()
	a.owned, a.problem, a.cancel, a.done, a.settled = true, "", cancel, done, settled
	a.mu.Unlock()
	a.w.owners.Go(func() {
		defer close(done)
		defer cancel()
		a.supervise(ctx, sync.OnceFunc(func() { close(settled) }))
	})
	return settled
}

// tried waits until the owner's first attempt is over, however it ended.
func (a *adapterRun) tried(ctx context.Context) {
	a.mu.Lock()
	settled := a.settled
	a.mu.Unlock()
	if settled == nil {
		return
	}
	select {
	case <-settled:
	case <-ctx.Done():
	}
}

// outcome is why the adapter does not run although it should; nil when it does.
func (a *adapterRun) outcome() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.problem != "" {
		return errors.New(a.problem)
	}
	return nil
}

// release ends the owner and leaves the process to the next one.
func (a *adapterRun) release() {
	a.mu.Lock()
	cancel, done := a.cancel, a.done
	a.owned, a.problem, a.cancel = false, "", nil
	a.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// halt ends the owner and then the process. What it has acknowledged is on
// disk.
func (a *adapterRun) halt(ctx context.Context) error {
	a.release()
	a.procs.Lock()
	defer a.procs.Unlock()
	err := a.end(ctx)
	if err == nil {
		a.event(record.Allowed, "stopped")
	}
	return err
}

func (a *adapterRun) supervise(ctx context.Context, settle func()) {
	defer settle()
	wait := adapterBackoff
	for ctx.Err() == nil {
		a.procs.Lock()
		err := a.bringUp(ctx)
		p := a.process
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, a.end(ctx)) // the next attempt begins from nothing
		}
		a.procs.Unlock()
		if ctx.Err() != nil {
			return
		}
		why := ""
		if err != nil {
			why = err.Error()
		}
		a.note(why)
		settle()
		if err == nil {
			a.event(record.Allowed, "ready")
			since := time.Now()
			p.wait(ctx)
			if ctx.Err() != nil {
				return
			}
			why = "the adapter ended"
			if time.Since(since) > adapterHealthy {
				wait = adapterBackoff
			}
		}
		a.note(why)
		a.mu.Lock()
		a.restarts++
		a.mu.Unlock()
		a.event(record.Failed, why)
		a.w.log.Warn("the adapter needs a restart", "team", a.place.Team, "why", why, "in", wait)
		pause(ctx, wait)
		wait = min(2*wait, adapterMaxBackoff)
	}
}

func (a *adapterRun) note(problem string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.problem = problem
}

func (a *adapterRun) event(v record.Verdict, detail string) {
	a.w.events.emit(record.Record{Team: a.place.Team, Agent: a.place.Name, Kind: record.Life, Verdict: v, Detail: detail})
}
