package warden

import (
	"context"
	"slices"
	"time"

	front "bulkhead/internal/front/protocol"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
)

// restGuests stops those that front has not called for so long, which run for
// at least settled, and says how many.
func (w *Warden) restGuests(ctx context.Context, b *guests, idle time.Duration, most int, settled time.Duration) int {
	f := w.service(layout.FrontName)
	if f == nil {
		return 0
	}
	q := front.Rest{Idle: idle, Most: most}
	w.mu.Lock()
	for _, g := range b.all {
		if g.state == guestUp && g.holds == 0 && time.Since(g.since) >= settled {
			q.Agents = append(q.Agents, front.Agent{Team: g.Place.Team, Name: g.Place.Name})
		}
	}
	w.mu.Unlock()
	if len(q.Agents) == 0 {
		return 0
	}
	var out front.Rested
	actx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if err := f.ask(actx, front.VerbRest, q, &out); err != nil {
		return 0
	}
	for _, a := range out.Agents {
		g := w.guest(b, a.Name)
		if g == nil {
			continue
		}
		g.turn.Lock()
		w.mu.Lock()
		up := g.state == guestUp
		w.mu.Unlock()
		if up {
			// It goes on to the end, whoever waits for the place.
			if err := w.stopGuest(context.WithoutCancel(ctx), g); err != nil {
				w.log.Warn("a guest does not stop", "team", a.Team, "agent", a.Name, "error", err)
			}
		}
		g.turn.Unlock()
	}
	return len(out.Agents)
}

// lives says whether the gateway of one that is up still runs.
func (g *guest) lives(ctx context.Context) bool {
	g.procs.Lock()
	defer g.procs.Unlock()
	if g.launcher == nil || g.dials() && (g.dialer == nil || !g.dialer.alive()) {
		return false
	}
	running, err := g.running(ctx)
	return err == nil && running[gatewayName]
}

// stopGuest ends everything that runs of a guest; its definition, ids and data
// stay. The caller holds its turn.
func (w *Warden) stopGuest(ctx context.Context, g *guest) error {
	w.mu.Lock()
	g.state, g.since = guestMoving, time.Now()
	w.mu.Unlock()
	w.unseatGuest(ctx, g)
	g.stopHearing()
	g.procs.Lock()
	defer g.procs.Unlock()
	if err := g.takeDown(ctx); err != nil {
		return err
	}
	if err := g.unmountGuest(); err != nil {
		return err
	}
	// Its profiles are made anew when it wakes: a thousand would stay in the kernel.
	if err := w.apparmor.Remove(g.Place.Team, g.Place.Name); err != nil {
		return err
	}
	if err := tree.Remove(g.Place.Run); err != nil {
		return err
	}
	w.mu.Lock()
	g.state, g.since = guestAsleep, time.Now()
	w.mu.Unlock()
	if g.dials() {
		if err := w.applyTable(ctx); err != nil {
			return err
		}
	}
	g.event(record.Life, record.Allowed, "", "asleep", nil)
	return nil
}

// unmountGuest takes the disk off. The ledger goes on naming the mount: it may
// be there again any moment.
func (g *guest) unmountGuest() error {
	defer g.w.disks.hold(g.Place)()
	for _, d := range g.w.wantedDisks(g.Place, g.Want) {
		if err := d.Unmount(); err != nil {
			return err
		}
	}
	return nil
}

// adoptGuests goes on with those that a former warden left running.
func (w *Warden) adoptGuests(team string) {
	w.mu.Lock()
	var left []*guest
	for _, g := range w.guestsOfLocked(team) {
		if w.ledger.Has(ledger.RunDir, g.Place.Run) {
			left = append(left, g)
		}
	}
	w.mu.Unlock()
	for _, g := range slices.SortedFunc(slices.Values(left), func(x, y *guest) int { return x.file.Place - y.file.Place }) {
		var run runState
		if ok, err := readJSON(runStatePath(g.Place), &run); err != nil || !ok {
			continue
		}
		w.owners.Go(func() {
			if w.endFenced(team, g) {
				return
			}
			w.wake(w.ctx, team, g.Place.Name)
		})
	}
}

// endFenced ends a guest that a former warden fenced, and may have left running.
func (w *Warden) endFenced(team string, g *guest) bool {
	b, done, err := w.guestBook(team)
	if err != nil {
		return false
	}
	defer done()
	if g.fenced(b) == nil {
		return false
	}
	g.turn.Lock()
	defer g.turn.Unlock()
	w.mu.Lock()
	runs := g.state != guestAsleep
	w.mu.Unlock()
	if runs {
		if err := w.stopGuest(w.ctx, g); err != nil {
			w.log.Error("a fenced guest does not end", "team", team, "agent", g.Place.Name, "error", err)
		}
	}
	return true
}

// watchGuests does what front has to do for guests, and has those rest that
// nobody calls.
func (w *Warden) watchGuests() {
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			pause(w.ctx, restTick)
			for name, idle := range w.guestTeams() {
				b, done, err := w.guestBook(name)
				if err != nil {
					continue
				}
				w.restGuests(w.ctx, b, idle, layout.GuestRanges, settleTime)
				done()
			}
		}
	})
	w.owners.Go(func() { w.watchFront(w.ctx) })
}

// guestTeams are the teams with guests, and how long one may be idle; without a
// ceiling not at all.
func (w *Warden) guestTeams() map[string]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]time.Duration{}
	for name := range w.guests {
		if t := w.teams[name]; t != nil {
			out[name] = 0
			if g := t.manifest.Guests(); g != nil {
				out[name] = g.Idle
			}
		}
	}
	return out
}
