package warden

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/host/nft"
	"bulkhead/internal/prove/packets"
	"bulkhead/internal/prove/routes"
	"bulkhead/internal/wire"
)

// Bounds of the checks that go on while teams run. One of seven agents takes some
// 0.3 s of a core, so that minGap keeps them below a hundredth of it.
const (
	minGap = time.Minute
	// confirm is how long something must be broken: what is being restarted or
	// changed at the moment of the check is no drift.
	confirm = 2 * time.Second
	// attacksGap is how long no attack is made after the last.
	attacksGap = time.Hour
)

// drifts is what is known of each team from its checks.
type drifts struct {
	wake chan struct{} // something changed

	mu       sync.Mutex // guards what follows
	teams    map[string]*teamDrift
	watchers map[*checkWatcher]bool
}

type teamDrift struct {
	broken  map[string]wire.Drift // by agent and statement
	fenced  map[string]bool
	checks  uint64
	alerts  uint64
	held    int
	last    time.Time // zero: not yet
	attacks time.Time // the last, or when the team was first seen
	tried   bool      // an attack was made
	changed bool      // by an up
	network bool      // something of the host's network
}

// checkWatcher is an operator who wants to hear of checks.
type checkWatcher struct {
	team  string
	every time.Duration
	first bool // it has had none yet
	queue chan wire.Check
}

func newDrifts() *drifts {
	return &drifts{wake: make(chan struct{}, 1), teams: map[string]*teamDrift{}, watchers: map[*checkWatcher]bool{}}
}

func (d *drifts) rouse() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// ofLocked gives what is known of a team, which counts from now when it is new.
func (d *drifts) ofLocked(team string) *teamDrift {
	t := d.teams[team]
	if t == nil {
		t = &teamDrift{broken: map[string]wire.Drift{}, fenced: map[string]bool{}, last: time.Now(), attacks: time.Now()}
		d.teams[team] = t
	}
	return t
}

// teamChanged says that an up has put something in force.
func (d *drifts) teamChanged(team string) {
	d.mu.Lock()
	t := d.ofLocked(team)
	t.changed = true
	d.mu.Unlock()
	d.rouse()
}

func (d *drifts) networkChanged() {
	d.mu.Lock()
	for _, t := range d.teams {
		t.network = true
	}
	d.mu.Unlock()
	d.rouse()
}

// watchDrift checks teams after changes and by the clock, one at a time.
func (w *Warden) watchDrift() {
	w.keepWatching("routes and interfaces", func(ctx context.Context) error { return routes.Watch(ctx, w.drifts.networkChanged) })
	w.keepWatching("other nftables tables", func(ctx context.Context) error {
		return packets.Watch(ctx, nft.Name, w.drifts.networkChanged)
	})
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			team, why, wait := w.due(time.Now())
			if team != "" {
				w.checkTeam(w.ctx, team, why)
				continue
			}
			t := time.NewTimer(wait)
			select {
			case <-w.ctx.Done():
			case <-w.drifts.wake:
			case <-t.C:
			}
			t.Stop()
		}
	})
}

// keepWatching watches again when a watch has ended; what was missed counts as a
// change.
func (w *Warden) keepWatching(what string, watch func(context.Context) error) {
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			err := watch(w.ctx)
			if w.ctx.Err() != nil {
				return
			}
			w.log.Error("a watch ended; starting it again", "of", what, "error", err)
			pause(w.ctx, time.Minute)
			w.drifts.networkChanged()
		}
	})
}

// due names the team that is to be checked now, and why; or how long there is none.
func (w *Warden) due(now time.Time) (team, why string, wait time.Duration) {
	w.mu.Lock()
	teams := maps.Clone(w.teams)
	w.mu.Unlock()
	d := w.drifts
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.teams {
		if teams[name] == nil {
			delete(d.teams, name)
		}
	}
	wait = attacksGap
	for _, name := range slices.Sorted(maps.Keys(teams)) {
		t, want := d.ofLocked(name), teams[name].manifest.Verify
		at := func(reason string, when time.Time) {
			if left := when.Sub(now); left <= 0 && team == "" {
				team, why = name, reason
			} else {
				wait = min(wait, max(left, time.Millisecond))
			}
		}
		if t.changed && want.OnChange {
			at("change", now)
		}
		if t.network && want.OnChange {
			at("network", t.last.Add(minGap))
		}
		if want.Every > 0 {
			at("clock", t.last.Add(want.Every))
		}
		for c := range d.watchers {
			switch {
			case c.team != name:
			case c.first:
				at("watch", now)
			default:
				at("watch", t.last.Add(c.every))
			}
		}
	}
	return team, why, wait
}

// summary tells what the checks of a team found.
func (w *Warden) summary(req wire.TeamRequest) (*wire.Checks, error) {
	t, err := w.team(req.Team)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	agents, all := maps.Clone(t.agents), t.sorted()
	w.mu.Unlock()
	var told []wire.AgentHeard
	for _, a := range all {
		if notices, outbox, gaps, asking := a.heard.told(); notices != nil || outbox != nil || gaps != nil || asking != nil {
			told = append(told, wire.AgentHeard{Agent: a.Place.Name, Notices: notices, Outbox: outbox, Gaps: gaps, Asking: asking})
		}
	}
	d := w.drifts
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.ofLocked(t.name)
	// An operator may have released some since.
	maps.DeleteFunc(s.fenced, func(name string, _ bool) bool { return agents[name] == nil || agents[name].fence.Load() == nil })
	res := &wire.Checks{
		SchemaVersion: 1, Team: t.name, Messages: t.adapter != nil, Checks: s.checks, Alerts: s.alerts, Held: s.held,
		Broken: inOrderOf(s.broken), Fenced: slices.Sorted(maps.Keys(s.fenced)), Heard: told,
	}
	if s.checks > 0 {
		res.Last = s.last.UTC()
	}
	if res.Fenced == nil {
		res.Fenced = []string{}
	}
	return res, nil
}

// inOrderOf lists drift by agent and statement.
func inOrderOf(m map[string]wire.Drift) []wire.Drift {
	out := slices.Collect(maps.Values(m))
	slices.SortFunc(out, func(a, b wire.Drift) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Statement, b.Statement))
	})
	if out == nil {
		out = []wire.Drift{}
	}
	return out
}
