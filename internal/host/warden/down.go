package warden

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// down removes teams; an empty name means every team.
func (w *Warden) down(ctx context.Context, req wire.DownRequest, say progress) (*wire.DownResult, error) {
	w.change.Lock()
	defer w.change.Unlock()
	w.mu.Lock()
	names := slices.Sorted(maps.Keys(w.teams))
	w.mu.Unlock()
	if req.Team != "" {
		names = []string{req.Team}
		if _, err := w.team(req.Team); err != nil {
			if !req.Purge || len(w.kept(req.Team)) == 0 {
				return nil, err
			}
			names = []string{} // it is down already; what it kept goes
		}
	}
	res := &wire.DownResult{SchemaVersion: 1, Teams: names, Removed: []string{}}
	for _, name := range names {
		t, err := w.team(name)
		if err != nil {
			return nil, err
		}
		say("", "stopping team "+name)
		one, err := w.removeTeam(ctx, t, req.Purge)
		res.Removed = append(res.Removed, one.Removed...)
		res.Kept = append(res.Kept, one.Kept...)
		if err != nil {
			return res, err
		}
	}
	if req.Purge {
		gone, err := w.purgeKept(req.Team)
		more, everr := w.purgeEvidence(req.Team)
		if req.Team != "" {
			said, terr := w.purgeTopics(ctx, req.Team)
			gone, err = append(gone, said...), errors.Join(err, terr)
		}
		if len(w.running()) == 0 {
			servers, serr := w.purgeServices()
			more, everr = append(more, servers...), errors.Join(everr, serr)
		}
		res.Removed = slices.Concat(res.Removed, gone, more)
		err = errors.Join(err, everr)
		if err != nil {
			return res, err
		}
	}
	return res, nil
}

// kept lists the data that teams left behind which are down; an empty name
// means every team.
func (w *Warden) kept(team string) []ledger.Thing {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ledger.Things(func(x ledger.Thing) bool {
		return x.Kind == ledger.StateDir && x.Agent != "" && (team == "" || x.Team == team) && w.teams[x.Team] == nil && w.unreadable[x.Team] == nil
	})
}

// purgeKept removes that data.
func (w *Warden) purgeKept(team string) (gone []string, err error) {
	for _, th := range w.kept(team) {
		place := w.host.Agent(th.Team, th.Agent)
		if place.State != th.Name {
			return gone, fmt.Errorf("warden: the ledger says that the data of %s/%s lies in %s, not in %s: remove it by hand", th.Team, th.Agent, th.Name, place.State)
		}
		if err := w.unmountDisks(place); err != nil {
			return gone, err
		}
		if err := tree.Remove(place.State); err != nil {
			return gone, err
		}
		gone = append(gone, place.State)
		if err := w.ledger.Forget(th); err != nil {
			return gone, err
		}
		for d := filepath.Dir(place.State); d != w.host.State && len(d) > len(w.host.State); d = filepath.Dir(d) {
			_ = os.Remove(d) // only when empty
		}
	}
	return gone, nil
}

// removeTeam ends a team and removes what it has, and what all teams share
// when it was the last. The caller holds w.change. Safe to repeat.
func (w *Warden) removeTeam(ctx context.Context, t *teamRun, purge bool) (res wire.DownResult, err error) {
	// From here on a crash goes on removing.
	t.state.Removing = true
	if err := w.saveBeforeEnd(ctx, t, t.sorted()); err != nil {
		return res, err
	}
	if err := errors.Join(haltAll(ctx, t.sorted()), w.closeGuests(ctx, t.name)); err != nil {
		return res, err
	}
	if t.adapter != nil { // last, so that what agents sent until their end is kept
		if err := t.adapter.halt(ctx); err != nil {
			return res, fmt.Errorf("%s: %w", layout.AdapterName, err)
		}
	}
	w.mu.Lock()
	delete(w.teams, t.name)
	left, founded := len(w.teams), w.sys != nil && len(w.unreadable) == 0
	w.mu.Unlock()
	if left > 0 {
		if err := w.foundServices(ctx); err != nil {
			return res, err
		}
		w.recoverServices()
		if err := w.applyTable(ctx); err != nil {
			return res, err
		}
	}
	// By the ledger, not by the manifest: it also knows what a crashed up made.
	for _, agent := range w.agentsOf(t) {
		gone, kept, err := w.dismiss(ctx, w.host.Agent(t.name, agent), purge)
		if err == nil {
			err = w.forgetIDs(t.name, agent)
		}
		res.Removed, res.Kept = append(res.Removed, gone...), append(res.Kept, kept...)
		if err != nil {
			return res, fmt.Errorf("agent %s: %w", agent, err)
		}
	}
	if left == 0 && founded {
		gone, err := w.removeSystem(ctx)
		res.Removed = append(res.Removed, gone...)
		if err != nil {
			return res, err
		}
	}
	// Last: as long as these files stand, the next warden knows of the team.
	dir := w.host.Team(t.name)
	if err := errors.Join(tree.Remove(w.host.Manifest(t.name)), tree.Remove(teamStatePath(w.host, t.name))); err != nil {
		return res, err
	}
	for _, d := range []string{filepath.Join(dir, "agents"), dir, filepath.Dir(dir)} {
		_ = os.Remove(d) // only when empty: kept data stays
	}
	return res, nil
}

// agentsOf lists every agent of a team that may have something on this host.
func (w *Warden) agentsOf(t *teamRun) []string {
	names := map[string]bool{}
	for n := range t.agents {
		names[n] = true
	}
	for _, th := range w.ledger.Things(func(x ledger.Thing) bool { return x.Team == t.name && x.Agent != "" }) {
		names[th.Agent] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// haltAll ends agents side by side.
func haltAll(ctx context.Context, agents []*agentRun) error {
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	for _, a := range agents {
		wg.Go(func() {
			if err := a.halt(ctx); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("agent %s: %w", a.Place.Name, err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// selected finds the agents that a request names; none named means all.
func (w *Warden) selected(req wire.AgentRequest) (*teamRun, []*agentRun, error) {
	t, err := w.team(req.Team)
	if err != nil {
		return nil, nil, err
	}
	if len(req.Agents) == 0 {
		return t, t.sorted(), nil
	}
	var out []*agentRun
	for _, n := range req.Agents {
		a, err := w.agent(t.name, n)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, a)
	}
	return t, out, nil
}

// stop ends agents and keeps their accounts, rules and data.
func (w *Warden) stop(ctx context.Context, req wire.AgentRequest) (*wire.StatusResult, error) {
	w.change.Lock()
	defer w.change.Unlock()
	if _, adapter := splitAdapter(req); adapter {
		return nil, notStopped(req.Team)
	}
	t, agents, err := w.selected(req)
	if err != nil {
		return nil, err
	}
	for _, a := range agents {
		st := t.state.Agents[a.Place.Name]
		st.Stopped = true
		t.state.Agents[a.Place.Name] = st
	}
	if err := w.saveBeforeEnd(ctx, t, agents); err != nil {
		return nil, err
	}
	if err := haltAll(ctx, agents); err != nil {
		return nil, err
	}
	st := w.status(ctx, t.name)
	return &st, nil
}

// restartAgents ends agents and starts them anew.
func (w *Warden) restartAgents(ctx context.Context, req wire.AgentRequest, say progress) (*wire.StatusResult, error) {
	w.change.Lock()
	defer w.change.Unlock()
	req, adapter := splitAdapter(req)
	t, agents, err := w.selected(req)
	if err != nil {
		return nil, err
	}
	for _, a := range agents {
		if err := a.fencedFault(); err != nil {
			return nil, err
		}
	}
	if adapter {
		if err := w.restartAdapter(ctx, t, say); err != nil {
			return nil, err
		}
		if len(req.Agents) == 0 { // which otherwise means all
			st := w.status(ctx, t.name)
			return &st, nil
		}
	}
	if err := haltAll(ctx, agents); err != nil {
		return nil, err
	}
	var changes []wire.Change
	for _, a := range t.sorted() {
		action := wire.ActionKeep
		if slices.Contains(agents, a) {
			action = wire.ActionRestart
		}
		changes = append(changes, wire.Change{Agent: a.Place.Name, Action: action})
	}
	only := &teamRun{name: t.name, manifest: t.manifest, state: t.state, agents: map[string]*agentRun{}}
	for _, a := range agents {
		only.agents[a.Place.Name] = a
	}
	failed := w.startChanged(ctx, only, changes, say)
	st := w.status(ctx, t.name)
	if len(failed) > 0 {
		return &st, failures(failed)
	}
	return &st, nil
}
