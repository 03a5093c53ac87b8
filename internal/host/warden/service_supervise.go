package warden

import (
	"context"
	"errors"
	"sync"
	"time"

	"bulkhead/internal/layout"
	"bulkhead/internal/record"
)

// start gives the server an owner, which starts it again for as long as a team
// wants it, as an adapter's does. The returned channel is closed when its
// first attempt to bring it up is over; [service.outcome] says how it ended.
func (s *service) start() <-chan struct{} {
	ctx, cancel := context.WithCancel(s.w.ctx)
	done, settled := make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	s.owned, s.problem, s.cancel, s.done, s.settled = true, "", cancel, done, settled
	s.mu.Unlock()
	s.w.owners.Go(func() {
		defer close(done)
		defer cancel()
		s.supervise(ctx, sync.OnceFunc(func() { close(settled) }))
	})
	return settled
}

// outcome is why the server does not run although it should; nil when it does.
func (s *service) outcome() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem != "" {
		return errors.New(s.problem)
	}
	return nil
}

// release ends the owner and leaves the process to the next one.
func (s *service) release() {
	s.mu.Lock()
	cancel, done := s.cancel, s.done
	s.owned, s.problem, s.cancel = false, "", nil
	s.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// halt ends the owner and then the process.
func (s *service) halt(ctx context.Context) error {
	s.release()
	s.procs.Lock()
	defer s.procs.Unlock()
	err := s.end(ctx)
	if err == nil {
		s.event(record.Allowed, "stopped")
	}
	return err
}

func (s *service) supervise(ctx context.Context, settle func()) {
	defer settle()
	wait := adapterBackoff
	for ctx.Err() == nil {
		s.procs.Lock()
		err := s.bringUp(ctx)
		p := s.process
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, s.end(ctx)) // the next attempt begins from nothing
		}
		s.procs.Unlock()
		if ctx.Err() != nil {
			return
		}
		why := ""
		if err != nil {
			why = err.Error()
		}
		if err == nil && s.place.Name != layout.AuditName && s.place.Name != layout.TopicsName {
			s.w.spreadTrust(ctx) // front trusts nobody until it is told, which the next tick would do late
		}
		s.note(why)
		settle()
		if err == nil {
			s.event(record.Allowed, "ready")
			since := time.Now()
			p.wait(ctx)
			if ctx.Err() != nil {
				return
			}
			why = "it ended"
			if time.Since(since) > adapterHealthy {
				wait = adapterBackoff
			}
		}
		s.note(why)
		s.mu.Lock()
		s.restarts++
		s.mu.Unlock()
		s.event(record.Failed, why)
		s.w.log.Warn("a server needs a restart", "server", s.place.Name, "why", why, "in", wait)
		pause(ctx, wait)
		wait = min(2*wait, adapterMaxBackoff)
	}
}

func (s *service) note(problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = problem
}

func (s *service) event(v record.Verdict, detail string) {
	s.w.events.emit(record.Record{Agent: s.place.Name, Kind: record.Life, Verdict: v, Detail: detail})
}
