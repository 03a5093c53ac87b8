package warden

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// fewAttacks are made by checks: one for each of the walls that statements do not
// show whole.
var fewAttacks = []string{"file.other", "process.see", "net.unlisted", "net.metadata", "dialer.unlisted", "kernel.unshare"}

// checkTeam checks a team once: the statements of prove and, now and then, a few
// attacks. What is broken is said once, and again when it is mended.
func (w *Warden) checkTeam(ctx context.Context, name, why string) {
	defer w.trim.Reset(trimAfter)
	now := time.Now()
	d := w.drifts
	d.mu.Lock()
	s := d.ofLocked(name)
	s.changed, s.network, s.last = false, false, now
	attack := now.Sub(s.attacks) >= attacksGap
	before := maps.Clone(s.broken)
	watched := maps.Clone(d.watchers) // whoever comes later gets a check of its own
	for c := range watched {
		if c.team == name {
			// The first check that somebody watches, whatever it is for.
			attack = attack || c.first && !s.tried
			c.first = false
		}
	}
	d.mu.Unlock()
	check := wire.Check{SchemaVersion: 1, Time: now.UTC(), Team: name, Why: why}
	broken, held, err := w.lookForDrift(ctx, name)
	if err == nil && anyNew(broken, before) {
		// It may be about to be put right, or to be taken down.
		pause(ctx, confirm)
		var again map[string]wire.Drift
		if again, held, err = w.lookForDrift(ctx, name); err == nil {
			maps.DeleteFunc(broken, func(k string, _ wire.Drift) bool { _, still := again[k]; return !still })
		}
	}
	if attack = attack && w.anyUp(name); err == nil && attack {
		check.Attacks, err = w.attackFew(ctx, name, broken)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if t, gone := w.team(name); gone != nil || t.state.Removing {
			return // taken down meanwhile
		}
		w.log.Error("the team could not be checked", "team", name, "error", err)
		check.Problem = err.Error()
		broken, held = before, s.held
	}
	for k, b := range broken {
		if b.Since = now.UTC(); before[k].Statement != "" {
			b.Since = before[k].Since
		}
		broken[k] = b
	}
	w.tellDrift(ctx, &check, broken, before)
	d.mu.Lock()
	s.broken, s.held = broken, held
	s.checks++
	if attack {
		s.attacks, s.tried = now, true
	}
	check.Held, check.Broken = held, inOrderOf(broken)
	for c := range d.watchers {
		if !watched[c] || c.team != name {
			continue
		}
		select {
		case c.queue <- check:
		default: // whoever does not read misses checks; the next says what holds then
		}
	}
	d.mu.Unlock()
}

// anyUp says whether an agent of the manifest is up, from which can be attacked.
func (w *Warden) anyUp(team string) bool {
	for name, up := range w.steady(team) {
		if _, guests := w.splitGuests(team, []string{name}); up && !isServer(name) && name != wire.Guests && len(guests) == 0 {
			return true
		}
	}
	return false
}

// isServer says whether a name stands for a server in the place of an agent: no
// agent may have it.
func isServer(name string) bool {
	return name == layout.AdapterName || slices.Contains(layout.ServiceNames(), name)
}

func anyNew(broken, before map[string]wire.Drift) bool {
	for k := range broken {
		if _, known := before[k]; !known {
			return true
		}
	}
	return false
}

// lookForDrift proves a team, and leaves out agents that are not up: that they do
// not run is for status to say.
func (w *Warden) lookForDrift(ctx context.Context, name string) (broken map[string]wire.Drift, held int, err error) {
	steady := w.steady(name)
	report, err := w.prove(ctx, wire.TeamRequest{Team: name})
	if err != nil {
		return nil, 0, err
	}
	after := w.steady(name)
	broken = map[string]wire.Drift{}
	for _, s := range report.Statements {
		switch {
		case !steady[s.Agent] || !after[s.Agent]:
		case s.Holds:
			held++
		default:
			detail := ""
			if len(s.Against) > 0 {
				detail = s.Against[0]
			}
			for _, p := range s.Premises {
				if !p.Holds && detail == "" {
					detail = "premise: " + p.Says + ": " + p.Why
				}
			}
			broken[s.Agent+" "+s.ID] = wire.Drift{Agent: s.Agent, Statement: s.ID, Detail: detail}
		}
	}
	return broken, held, nil
}

// steady are the agents of a team that are up, its guests, whether they sleep or
// not, its adapter, and the host's servers on which it relies.
func (w *Warden) steady(name string) map[string]bool {
	out := map[string]bool{}
	t, err := w.team(name)
	if err != nil {
		return out
	}
	w.mu.Lock()
	agents := t.sorted()
	w.mu.Unlock()
	for _, a := range agents {
		a.mu.Lock()
		settled := a.settled
		up := a.want && a.problem == "" && settled != nil && a.fence.Load() == nil
		a.mu.Unlock()
		select {
		case <-settled:
			out[a.Place.Name] = up
		default:
		}
	}
	w.mu.Lock()
	if b := w.guests[name]; b != nil {
		for _, g := range b.all {
			// Those that sleep are looked at as well.
			out[g.Place.Name] = g.state != guestMoving && g.fenced(b) == nil
		}
		out[wire.Guests] = true
	}
	w.mu.Unlock()
	if t.adapter != nil {
		t.adapter.mu.Lock()
		settled := t.adapter.settled
		up := t.adapter.owned && t.adapter.problem == "" && settled != nil
		t.adapter.mu.Unlock()
		select {
		case <-settled:
			out[layout.AdapterName] = up
		default:
		}
	}
	for _, s := range w.servicesOf(t) {
		s.mu.Lock()
		settled, up := s.settled, s.owned && s.problem == ""
		s.mu.Unlock()
		select {
		case <-settled: // never, while it has no owner
			out[s.place.Name] = up
		default:
		}
	}
	return out
}

// attackFew adds what an attack could do to broken, and says how many were denied.
func (w *Warden) attackFew(ctx context.Context, name string, broken map[string]wire.Drift) (denied int, err error) {
	report, err := w.verify(ctx, wire.VerifyRequest{Team: name, NoControls: true, Attacks: fewAttacks}, func(string, string) {})
	if err != nil {
		return 0, err
	}
	after := w.steady(name)
	for _, r := range report.Rows {
		if r.Attack == "none" || !after[r.Agent] || r.Target != "" && !after[r.Target] {
			continue // that it does not run is for status to say
		}
		switch r.Verdict {
		case evidence.Denied:
			denied++
		case evidence.NotRun:
		default:
			id := "attack " + r.Attack
			broken[r.Agent+" "+id] = wire.Drift{Agent: r.Agent, Statement: id, Detail: string(r.Verdict) + " from " + string(r.Position) + ": " + r.Evidence}
		}
	}
	return denied, nil
}

// tellDrift says what is new and what is mended, and puts up the fence where the
// manifest wants it.
func (w *Warden) tellDrift(ctx context.Context, check *wire.Check, broken, before map[string]wire.Drift) {
	var alerts uint64
	for _, b := range inOrderOf(broken) {
		if _, known := before[b.Agent+" "+b.Statement]; known {
			continue
		}
		alerts++
		w.log.Error("drift", "team", check.Team, "agent", b.Agent, "statement", b.Statement, "detail", b.Detail)
		w.events.emit(record.Record{Team: check.Team, Agent: b.Agent, Kind: record.Drift, Verdict: record.Failed, Target: b.Statement, Detail: b.Detail})
	}
	for k, b := range before {
		if _, still := broken[k]; !still {
			check.Mended = append(check.Mended, b)
			w.log.Info("drift is over", "team", check.Team, "agent", b.Agent, "statement", b.Statement)
			w.events.emit(record.Record{Team: check.Team, Agent: b.Agent, Kind: record.Drift, Verdict: record.Allowed, Target: b.Statement, Detail: "it holds again, or its agent does not run any more"})
		}
	}
	w.drifts.mu.Lock()
	w.drifts.ofLocked(check.Team).alerts += alerts
	w.drifts.mu.Unlock()
	t, err := w.team(check.Team)
	if err != nil || len(broken) == 0 || t.manifest.Verify.OnDrift != team.DriftFence {
		return
	}
	w.fenceDrift(ctx, t, check, broken)
}

// fenceDrift fences the agents that drift is about, as `bulkhead panic` does. Drift
// of a server is drift of everybody who relies on it.
func (w *Warden) fenceDrift(ctx context.Context, t *teamRun, check *wire.Check, broken map[string]wire.Drift) {
	steady := w.steady(t.name)
	why := map[string]string{}
	for _, b := range broken {
		why[b.Agent] = b.Statement + ": " + b.Detail
	}
	server := ""
	for _, s := range append(layout.ServiceNames(), layout.AdapterName) {
		if reason, drifted := why[s]; drifted && server == "" {
			server = s + ": " + reason
		}
	}
	if server != "" {
		// Those that sleep as well: the next call would wake them.
		f := fenceFile{Version: stateVersion, Fence: wire.Fence{Since: time.Now().UTC().Truncate(time.Second), By: "the warden", Why: "drift: " + server}}
		if err := w.fenceGuests(ctx, t.name, f); err != nil {
			w.log.Error("the fence could not be put up", "team", t.name, "agent", wire.Guests, "error", err)
			check.Problem = "the fence of the guests could not be put up: " + err.Error()
		} else if steady[wire.Guests] {
			check.Fenced = append(check.Fenced, wire.Guests)
		}
	}
	for name, up := range steady {
		reason, ok := why[name]
		if _, single := w.splitGuests(t.name, []string{name}); !ok && server != "" && len(single) == 0 {
			reason, ok = server, name != wire.Guests
		}
		if !ok || !up || isServer(name) {
			continue
		}
		if _, err := w.fenceAgents(ctx, wire.FenceRequest{Team: t.name, Agents: []string{name}, Why: "drift: " + reason}, "the warden"); err != nil {
			w.log.Error("the fence could not be put up", "team", t.name, "agent", name, "error", err)
			check.Problem = "the fence of " + name + " could not be put up: " + err.Error()
			continue
		}
		check.Fenced = append(check.Fenced, name)
		w.drifts.mu.Lock()
		w.drifts.ofLocked(t.name).fenced[name] = true
		w.drifts.mu.Unlock()
	}
	slices.Sort(check.Fenced)
}

// watchChecks sends each check until the operator leaves.
func (c *call) watchChecks() error {
	var req wire.CheckRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	t, err := c.w.team(req.Team)
	if err != nil {
		return err
	}
	if req.Every < minGap {
		return badInput(req.Every.String()+" is less than a minute", "say --every 1m, or more")
	}
	me := &checkWatcher{team: t.name, every: req.Every, first: true, queue: make(chan wire.Check, 16)}
	ctx, cancel := c.whileAsked()
	defer cancel()
	if err := c.conn.Send(c.id, wire.VerbStarted, struct{}{}); err != nil {
		return nil // the operator has left
	}
	d := c.w.drifts
	d.mu.Lock()
	d.watchers[me] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.watchers, me)
		d.mu.Unlock()
	}()
	d.rouse()
	for {
		select {
		case check := <-me.queue:
			_ = c.conn.Unix().SetWriteDeadline(time.Now().Add(10 * time.Second))
			if err := c.conn.Send(0, wire.VerbEvent, check); err != nil {
				return nil // the operator has left
			}
		case <-ctx.Done():
			return nil
		}
	}
}
