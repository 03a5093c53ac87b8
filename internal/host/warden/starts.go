package warden

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// startsPerCore is how many agents are started side by side. More of them only
// take the processors from each other, until one is given up as too slow; fewer
// would let one that hangs hold up the rest.
const startsPerCore = 8

// startChanged restarts what changed and starts what should run, all agents
// side by side, and returns one line for each that failed.
func (w *Warden) startChanged(ctx context.Context, t *teamRun, changes []wire.Change, say progress) []string {
	action := actions(changes)
	var (
		mu     sync.Mutex
		failed []string
		wg     sync.WaitGroup
	)
	failed = append(failed, w.startServices(ctx, say)...)
	awaitAdapter := w.startAdapter(ctx, t, say)
	slots := make(chan struct{}, startsPerCore*runtime.NumCPU())
	for _, a := range t.sorted() {
		if st := t.state.Agents[a.Place.Name]; st.Stopped {
			st.Stopped = false // up means run
			t.state.Agents[a.Place.Name] = st
		}
		if a.fence.Load() != nil {
			say(a.Place.Name, "fenced, and left so: bulkhead release "+a.Place.Name)
			continue
		}
		keep := action[a.Place.Name] == wire.ActionKeep
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := w.startOne(ctx, a, keep); err != nil {
				mu.Lock()
				failed = append(failed, fmt.Sprintf("agent %s: %v", a.Place.Name, err))
				mu.Unlock()
				say(a.Place.Name, "failed: "+err.Error())
				return
			}
			say(a.Place.Name, "ready")
		})
	}
	if err := awaitAdapter(); err != nil {
		// Agents start all the same: what they send waits in their outboxes.
		mu.Lock()
		failed = append(failed, layout.AdapterName+": "+err.Error())
		mu.Unlock()
	}
	wg.Wait()
	if err := w.saveTeam(t, nil); err != nil {
		failed = append(failed, err.Error())
	}
	slices.Sort(failed)
	return failed
}

// actions maps agents to what a plan does with them.
func actions(changes []wire.Change) map[string]wire.Action {
	out := map[string]wire.Action{}
	for _, c := range changes {
		out[c.Agent] = c.Action
	}
	return out
}

// startOne returns when the agent runs or has failed to. With keep, an owner
// that has no problem goes on; otherwise it gets a new one, which adopts what
// runs and still is as wanted.
func (w *Warden) startOne(ctx context.Context, a *agentRun, keep bool) error {
	a.mu.Lock()
	var settled <-chan struct{} = a.settled
	well := a.want && a.problem == ""
	a.mu.Unlock()
	if !keep || !well {
		a.release()
		settled = a.start()
	}
	select {
	case <-settled:
		return a.outcome()
	case <-ctx.Done():
		return ctx.Err()
	}
}
