package warden

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

// Restart policy: after this many restarts within the window an agent stays
// down and says so.
const (
	maxRestarts   = 5
	restartWindow = 300 * time.Second
	firstBackoff  = 500 * time.Millisecond
)

// start gives the agent an owner. The returned channel is closed when the
// first attempt to bring it up is over; [agentRun.outcome] says how it ended.
func (a *agentRun) start() <-chan struct{} {
	ctx, cancel := context.WithCancel(a.w.ctx)
	done, settled := make(chan struct{}), make(chan struct{})
	a.mu.Lock()
	a.want, a.problem, a.restarts, a.cancel, a.done, a.settled = true, "", nil, cancel, done, settled
	a.mu.Unlock()
	a.w.owners.Go(func() {
		defer close(done)
		defer cancel()
		a.supervise(ctx, sync.OnceFunc(func() { close(settled) }))
	})
	return settled
}

// outcome is why the agent does not run although it should; nil when it does.
func (a *agentRun) outcome() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.problem != "" {
		return errors.New(a.problem)
	}
	return nil
}

// release ends the owner and leaves the processes to the next one.
func (a *agentRun) release() {
	a.mu.Lock()
	cancel, done := a.cancel, a.done
	a.want, a.problem, a.cancel = false, "", nil
	a.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// halt ends the owner and then every process of the agent.
func (a *agentRun) halt(ctx context.Context) error {
	a.release()
	a.procs.Lock()
	defer a.procs.Unlock()
	err := a.takeDown(ctx)
	if err == nil {
		a.event(record.Life, record.Allowed, "", "stopped", nil)
	}
	return err
}

func (a *agentRun) supervise(ctx context.Context, settle func()) {
	defer settle()
	for ctx.Err() == nil {
		a.procs.Lock()
		err := a.bringUp(ctx)
		a.procs.Unlock()
		why := ""
		if err != nil {
			why = err.Error()
		}
		if ctx.Err() == nil {
			a.note(why)
		}
		settle()
		if err == nil {
			a.event(record.Life, record.Allowed, "", "ready", nil)
			why = a.watch(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		a.note(why)
		a.event(record.Life, record.Failed, "", why, nil)
		a.w.log.Warn("agent needs a restart", "team", a.Place.Team, "agent", a.Place.Name, "why", why)
		wait, ok := a.backoff(time.Now())
		if !ok {
			a.note(fmt.Sprintf("restarted %d times in %s and given up; the last time because: %s; look at `bulkhead logs %s`, then `bulkhead restart %s`",
				maxRestarts, restartWindow, why, a.Place.Name, a.Place.Name))
			a.event(record.Life, record.Failed, "", "restarted too often and given up", nil)
			a.w.log.Error("agent given up", "team", a.Place.Team, "agent", a.Place.Name, "why", why)
			<-ctx.Done()
			return
		}
		a.event(record.Life, record.Allowed, "", "restarting in "+wait.String(), nil)
		pause(ctx, wait)
	}
}

func (a *agentRun) note(problem string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.problem = problem
}

// backoff counts one restart and says how long to wait before it. The wait
// doubles with each restart inside the window.
func (a *agentRun) backoff(now time.Time) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := a.restarts[:0]
	for _, t := range a.restarts {
		if now.Sub(t) < restartWindow {
			kept = append(kept, t)
		}
	}
	a.restarts = kept
	if len(a.restarts) >= maxRestarts {
		return 0, false
	}
	wait := firstBackoff << len(a.restarts)
	a.restarts = append(a.restarts, now)
	return wait, true
}

// errEnded stops a watch.
var errEnded = errors.New("ended")

// watch returns what ended, once something that should run has; empty when ctx
// ended first. The end of a task's command is not a fault.
func (a *agentRun) watch(ctx context.Context) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan string, 3)
	a.procs.Lock()
	client, dialer := a.launcher, a.dialer
	a.procs.Unlock()
	if client == nil || dialer == nil {
		return "its processes were taken down"
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		err := client.Watch(ctx, func(e launcher.Event) error {
			if e.Kind != launcher.EventExited || a.expected(e.Container) {
				return nil
			}
			ended <- fmt.Sprintf("%s ended: %s", e.Container.Name, exitText(e.Container.Exit))
			return errEnded
		})
		if err != nil && !errors.Is(err, errEnded) && ctx.Err() == nil {
			ended <- "its launcher ended: " + err.Error()
		}
	}()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		dialer.wait(ctx)
		if ctx.Err() == nil {
			ended <- "its dialer ended"
		}
	}()
	told := make(chan struct{})
	go func() {
		defer close(told)
		a.hear(ctx)
	}()
	why := ""
	select {
	case why = <-ended:
	case <-client.Exited():
		why = "its launcher ended"
	case <-ctx.Done():
	}
	cancel()
	<-watched
	<-gone
	<-told
	return why
}

// expected says whether a container's end needs no answer: one-off commands
// and probes, and a task that is over.
func (a *agentRun) expected(c launcher.Container) bool {
	switch c.Name {
	case gatewayName:
		return false
	case runtimeName:
		return a.Want.Mode == team.ModeTask
	}
	return true
}

func exitText(e *cell.Exit) string {
	if e == nil {
		return "no exit status"
	}
	return e.String()
}
