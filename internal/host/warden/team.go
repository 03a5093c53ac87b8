package warden

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"bulkhead/internal/host"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// teamRun is one team on this host.
type teamRun struct {
	name     string
	manifest *team.Manifest
	raw      []byte // the manifest as it was written
	state    teamState
	agents   map[string]*agentRun
	adapter  *adapterRun       // nil: no agent has channels or messages
	leaving  *adapterRun       // of the former manifest, when this one has none
	clones   map[string]string // what this up brought for workspaces, by agent
}

func (t *teamRun) sorted() []*agentRun {
	out := make([]*agentRun, 0, len(t.agents))
	for _, n := range slices.Sorted(maps.Keys(t.agents)) {
		out = append(out, t.agents[n])
	}
	return out
}

// team finds a team; an empty name finds the only one.
func (w *Warden) team(name string) (*teamRun, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "" && len(w.teams) == 1 {
		for _, t := range w.teams {
			return t, nil
		}
	}
	if t, ok := w.teams[name]; ok {
		return t, nil
	}
	names := slices.Sorted(maps.Keys(w.teams))
	switch {
	case len(names) == 0:
		return nil, badInput("no team runs on this host", "bulkhead up")
	case name == "":
		return nil, badInput(fmt.Sprintf("several teams run on this host: %v", names), "name one with --team")
	}
	return nil, badInput(fmt.Sprintf("no team %q runs on this host", name), fmt.Sprintf("the teams are %v", names))
}

// agent finds an agent of a team, which may be empty when there is only one.
func (w *Warden) agent(teamName, name string) (*agentRun, error) {
	t, err := w.team(teamName)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := t.agents[name]; ok {
		return a, nil
	}
	if w.guestsOfLocked(t.name)[name] != nil {
		return nil, badInput(fmt.Sprintf("%s is a guest of team %s, made over HTTP: it has a gateway and no runtime, so there is nothing of it that this could be done with", name, t.name),
			"logs (--container gateway), watch, why, denials, panic, release and token take the names of guests; its tools are called through front")
	}
	return nil, badInput(fmt.Sprintf("team %s has no agent %q", t.name, name), fmt.Sprintf("its agents are %v", slices.Sorted(maps.Keys(t.agents))))
}

// saveTeam writes the state and, when raw is given, the manifest in force.
func (w *Warden) saveTeam(t *teamRun, raw []byte) error {
	if err := tree.MkdirAll(w.host.Team(t.name)); err != nil {
		return err
	}
	if raw != nil {
		if err := tree.WriteFile(w.host.Manifest(t.name), raw, 0o600, 0); err != nil {
			return err
		}
	}
	return writeJSON(teamStatePath(w.host, t.name), t.state)
}

// admit gives an agent its account and ids; its folders are for the caller to make
// ([agentRun.folders]). The caller holds w.change.
func (w *Warden) admit(ctx context.Context, t *teamRun, want *team.Agent) (*agentRun, error) {
	a := &agentRun{w: w, accepted: t.state.Accepted, adapter: t.adapter, Agent: host.Agent{Place: w.host.Agent(t.name, want.Name), Want: want, Messages: t.adapter != nil, Services: t.manifest.Services()}}
	if err := (accountLayer{w: w}).Apply(ctx, &a.Agent); err != nil {
		return nil, err
	}
	var err error
	st := t.state.Agents[want.Name]
	if st.Dialer == 0 {
		if st.Dialer, err = w.freeDialer(t); err != nil {
			return nil, err
		}
		t.state.Agents[want.Name] = st
		if err := w.saveTeam(t, nil); err != nil {
			return nil, err
		}
	}
	a.IDs.Dialer = st.Dialer
	a.loadFence()
	return a, nil
}

// freeDialer picks an id of the system block that no agent of any team has.
func (w *Warden) freeDialer(t *teamRun) (uint32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	used := map[uint32]bool{}
	for _, other := range append(slices.Collect(maps.Values(w.teams)), t) {
		for _, a := range other.state.Agents {
			used[a.Dialer] = true
		}
	}
	// The last thousand ids of the block are for decoys.
	alive, err := idsInUse(w.sys.block)
	if err != nil {
		return 0, err
	}
	for id := w.sys.block.First; id <= w.sys.block.Last()-decoyIDs; id++ {
		if !used[id] && !alive[id] {
			return id, nil
		}
	}
	return 0, errors.New("warden: the block of dialer ids is used up")
}

// idsInUse asks the kernel which ids of a range have processes. A dialer whose
// team's state was lost has an id that no list knows: two agents with one id
// would have one another's destinations.
func idsInUse(r account.Range) (map[uint32]bool, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return nil, err // the pattern is constant
	}
	out := map[uint32]bool{}
	for _, p := range paths {
		raw, err := os.ReadFile(p) // #nosec G304 -- procfs
		if err != nil {
			continue // it has ended
		}
		c, err := parseStatus(string(raw))
		if err != nil {
			return nil, fmt.Errorf("warden: %s: %w", p, err)
		}
		for _, id := range c.uids {
			if id >= r.First && id <= r.Last() {
				out[id] = true
			}
		}
	}
	return out, nil
}

// decoyIDs is how many ids at the end of the system block are kept for decoys.
const decoyIDs = 1000

// applyTable puts the rules of every agent of every team in force, and of those
// guests that run.
func (w *Warden) applyTable(ctx context.Context) error {
	w.tabling.Lock() // the last one in force is the last that was read
	defer w.tabling.Unlock()
	w.mu.Lock()
	want := nft.Want{
		Refused:  []nft.Range{{First: w.sys.block.First, Last: w.sys.block.Last()}},
		Resolver: &nft.Resolver{ID: w.sys.dns.UID, Servers: w.sys.servers},
	}
	want.Refused = append(want.Refused, w.guestIDsLocked()...)
	for _, a := range w.guestsLocked(func(g *guest) bool { return g.state != guestAsleep && g.dials() }) {
		want.Agents = append(want.Agents, nft.Binding{Account: a.Place.Account, IDs: a.IDs})
	}
	for _, t := range w.teams {
		for _, a := range t.agents {
			want.Agents = append(want.Agents, nft.Binding{Account: a.Place.Account, IDs: a.IDs, Fenced: a.fence.Load() != nil})
		}
		if t.adapter != nil { // it has no network at all; this is for whoever gets out of its cell
			want.Refused = append(want.Refused, nft.Range{First: t.adapter.uid, Last: t.adapter.uid})
		}
	}
	w.serviceRulesLocked(&want)
	w.mu.Unlock()
	slices.SortFunc(want.Agents, func(x, y nft.Binding) int { return int(int64(x.IDs.Dialer) - int64(y.IDs.Dialer)) })
	if err := w.table.Apply(ctx, want); err != nil {
		return fmt.Errorf("layer egress: %w", err)
	}
	return nil
}

// dismiss removes what an agent has on this host except its data. It has no
// processes any more, and its rules are gone. The caller holds w.change.
func (w *Warden) dismiss(ctx context.Context, place layout.Agent, purge bool) (gone, kept []string, err error) {
	cg := filepath.Join(place.Team, place.Name)
	if err := w.killCgroup(cg); err != nil {
		return nil, nil, err
	}
	gone = append(gone, "cgroup "+cg)
	if err := w.apparmor.Remove(place.Team, place.Name); err != nil {
		return gone, nil, err
	}
	if err := w.unmountDisks(place); err != nil {
		return gone, nil, err
	}
	if err := (accountLayer{w: w}).Remove(ctx, &host.Agent{Place: place}); err != nil {
		return gone, nil, err
	}
	gone = append(gone, "account "+place.Account)
	w.refused.forget(place.Account)
	if err := tree.Remove(place.Run); err != nil {
		return gone, nil, err
	}
	gone = append(gone, place.Run)
	forget := []ledger.Thing{{Kind: ledger.Cgroup, Name: cg}, {Kind: ledger.RunDir, Name: place.Run}}
	if purge {
		if err := tree.Remove(place.State); err != nil {
			return gone, nil, err
		}
		gone = append(gone, place.State)
		forget = append(forget, ledger.Thing{Kind: ledger.StateDir, Name: place.State})
	} else if _, err := os.Lstat(place.State); err == nil {
		// The files carry ids that another account may get: closed to all but
		// root until the next up gives them to the agent's ids again.
		if err := tree.MakeAll(tree.Entry{Path: place.State, Mode: 0o700}); err != nil {
			return gone, nil, err
		}
		kept = append(kept, place.State)
	}
	_ = os.Remove(filepath.Dir(place.Run)) // the team's folder, when this was its last agent
	if purge {
		_ = os.Remove(filepath.Dir(place.State))
	}
	return gone, kept, w.ledger.Forget(forget...)
}
