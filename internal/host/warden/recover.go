package warden

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"bulkhead/internal/host/account"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/layout"
)

// recover brings the host back to what was last asked for: it adopts agents
// that run, starts those that should, goes on with a down that was cut short,
// and removes what the ledger knows and no team claims.
//
// A team whose manifest or state cannot be read is left exactly as it is:
// stopping agents by guess would be worse.
func (w *Warden) recover(ctx context.Context) {
	w.change.Lock()
	defer w.change.Unlock()
	unreadable := map[string]bool{}
	for _, name := range w.knownTeams() {
		if err := w.recoverTeam(ctx, name); err != nil {
			unreadable[name] = true
			w.mu.Lock()
			w.unreadable[name] = err
			w.mu.Unlock()
			w.log.Error("team not recovered; left as it is", "team", name, "error", err)
		}
	}
	w.mu.Lock()
	teams := maps.Clone(w.teams)
	w.mu.Unlock()
	if len(teams) > 0 {
		if err := errors.Join(w.foundServices(ctx), w.applyTable(ctx), w.ensureResolver(ctx)); err != nil {
			w.log.Error("shared rules, servers and resolver", "error", err)
		}
		w.recoverServices()
	}
	for _, t := range teams {
		if t.adapter != nil && !t.state.Removing {
			t.adapter.want(t)
			t.adapter.start()
		}
		for _, a := range t.sorted() {
			if t.state.Removing || t.state.Agents[a.Place.Name].Stopped {
				continue
			}
			if a.fence.Load() != nil {
				if err := a.freezeGroups(); err != nil {
					w.log.Error("keeping a fenced agent frozen", "team", t.name, "agent", a.Place.Name, "error", err)
				}
				continue
			}
			a.start() // its owner goes on by itself and reports in status
		}
		w.adoptGuests(t.name)
	}
	for _, t := range teams {
		if !t.state.Removing {
			continue
		}
		if _, err := w.removeTeam(ctx, t, false); err != nil {
			w.log.Error("going on with the removal of a team", "team", t.name, "error", err)
		}
	}
	w.removeOrphans(ctx, unreadable)
}

// knownTeams lists teams that have a state file.
func (w *Warden) knownTeams() []string {
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(w.host.Team("x")), "*", "state.json"))
	if err != nil {
		return nil // the pattern is constant
	}
	var out []string
	for _, p := range paths {
		out = append(out, filepath.Base(filepath.Dir(p)))
	}
	slices.Sort(out)
	return out
}

func (w *Warden) recoverTeam(ctx context.Context, name string) error {
	m, raw, st, ok, err := loadTeam(w.host, name)
	if err != nil || !ok {
		return err
	}
	if _, err := w.ensureSystem(ctx); err != nil {
		return err
	}
	t := &teamRun{name: name, manifest: m, raw: raw, state: st, agents: map[string]*agentRun{}}
	w.setTeam(t)
	if err := w.foundGuests(ctx, t); err != nil {
		w.log.Error("guests not recovered", "team", name, "error", err)
	}
	if err := w.settleGuests(ctx, t); err != nil { // from the next up on it is known what they run under
		w.log.Error("guests", "team", name, "error", err)
	}
	if !st.Removing {
		if err := w.admitAdapter(ctx, t); err != nil {
			w.log.Error("adapter not recovered", "team", name, "error", err)
		}
	}
	for _, want := range m.Agents {
		if st.Removing {
			continue // the ledger knows its agents
		}
		a, err := w.admit(ctx, t, want)
		if err != nil {
			w.log.Error("agent not recovered", "team", name, "agent", want.Name, "error", err)
			continue
		}
		if err := a.folders(); err != nil {
			// It stays the team's: whoever starts it meets the same, and says so.
			w.log.Error("an agent's folders are not whole", "team", name, "agent", want.Name, "error", err)
		}
		w.mu.Lock()
		t.agents[want.Name] = a
		w.mu.Unlock()
	}
	return nil
}

// removeOrphans removes what nobody claims: the rest of an up or down that was
// killed before or after its team's state file existed.
func (w *Warden) removeOrphans(ctx context.Context, unreadable map[string]bool) {
	w.mu.Lock()
	claimed := map[string]bool{}
	for _, t := range w.teams {
		for n := range t.agents {
			claimed[t.name+"/"+n] = true
		}
		for n := range w.guestsOfLocked(t.name) {
			claimed[t.name+"/"+n] = true
		}
		if t.adapter != nil {
			claimed[t.name+"/"+layout.AdapterName] = true
		}
	}
	none := len(w.teams) == 0 && len(unreadable) == 0
	w.mu.Unlock()
	seen := map[string]bool{}
	for _, th := range w.ledger.Things(func(x ledger.Thing) bool { return x.Agent != "" && x.Kind != ledger.StateDir }) {
		key := th.Team + "/" + th.Agent
		if seen[key] || claimed[key] || unreadable[th.Team] {
			continue
		}
		seen[key] = true
		place := w.host.Agent(th.Team, th.Agent)
		orphan := &agentRun{w: w}
		orphan.Place = place
		_, _, err := w.dismiss(ctx, orphan.Place, false)
		if err == nil {
			err = w.forgetIDs(th.Team, th.Agent)
		}
		if err != nil {
			w.log.Error("removing what a crash left", "thing", th.String(), "error", err)
		}
	}
	if !none || !w.sharedLeft() {
		return
	}
	w.mu.Lock()
	if w.sys == nil {
		w.sys = &system{dns: account.User{}}
	}
	w.mu.Unlock()
	if _, err := w.removeSystem(ctx); err != nil {
		w.log.Error("removing what a crash left", "error", err)
	}
}

func (w *Warden) sharedLeft() bool {
	return w.ledger.Has(ledger.Account, layout.SystemAccount) || w.ledger.Has(ledger.Account, layout.ResolverAccount) || w.ledger.Has(ledger.Account, layout.GuestsAccount) || w.servicesLeft() ||
		w.ledger.Has(ledger.Table, nft.Name)
}

// operatorsGID finds the group of operators in a group file.
func operatorsGID(path string) (uint32, bool) {
	raw, err := os.ReadFile(path) // #nosec G304 -- /etc/group
	if err != nil {
		return 0, false
	}
	return groupID(string(raw), operatorsGroupName)
}
