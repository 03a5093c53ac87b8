package warden

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// closeGuests ends those that run. None is made or woken from then on. The
// caller takes the team down.
func (w *Warden) closeGuests(ctx context.Context, team string) error {
	w.mu.Lock()
	b := w.guests[team]
	w.mu.Unlock()
	if b == nil {
		return nil
	}
	b.gate.Lock()
	b.closed = true
	b.gate.Unlock()
	err := w.endGuests(ctx, b)
	if err != nil {
		return err
	}
	w.mu.Lock()
	delete(w.guests, team)
	w.mu.Unlock()
	return tree.Remove(w.host.GuestsFence(team))
}

// endGuests ends every guest that runs, side by side.
func (w *Warden) endGuests(ctx context.Context, b *guests) error {
	w.mu.Lock()
	var running []*guest
	for _, g := range b.all {
		if g.state != guestAsleep {
			running = append(running, g)
		}
	}
	w.mu.Unlock()
	errs := make([]error, len(running))
	var wg sync.WaitGroup
	for i, g := range running {
		wg.Go(func() {
			g.turn.Lock()
			defer g.turn.Unlock()
			errs[i] = w.stopGuest(ctx, g)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (b *guests) loadFence(path string) {
	var f fenceFile
	switch ok, err := readJSON(path, &f); {
	case err != nil:
		b.fence.Store(&wire.Fence{By: "the warden", Why: err.Error()})
	case ok:
		b.fence.Store(&f.Fence)
	}
}

// fenceGuests ends a team's guests and keeps them from waking until they are
// released: what has ended needs no freezing.
func (w *Warden) fenceGuests(ctx context.Context, team string, f fenceFile) error {
	w.mu.Lock()
	b := w.guests[team]
	w.mu.Unlock()
	if b == nil {
		return nil
	}
	var err error
	if b.fence.Load() == nil {
		err = writeJSON(w.host.GuestsFence(team), f)
		b.fence.Store(&f.Fence) // whatever the disk said
	}
	for _, a := range w.movingGuests(b) { // at once: their turn may be another's
		err = errors.Join(err, w.killCgroup(filepath.Join(a.Place.Team, a.Place.Name)))
	}
	return errors.Join(err, w.endGuests(ctx, b))
}

// fenceGuest ends one guest and keeps it from waking until it is released. What
// is said of it is read back.
func (w *Warden) fenceGuest(ctx context.Context, g *guest, f fenceFile) (wire.FencedAgent, error) {
	var errs []error
	if g.fence.Load() == nil {
		errs = append(errs, writeJSON(g.fencePath(), f))
		g.fence.Store(&f.Fence) // whatever the disk said
	}
	w.mu.Lock()
	runs := g.state != guestAsleep
	w.mu.Unlock()
	if runs {
		errs = append(errs, w.killCgroup(filepath.Join(g.Place.Team, g.Place.Name))) // at once: its turn may be another's
		g.turn.Lock()
		w.mu.Lock()
		runs = g.state != guestAsleep
		w.mu.Unlock()
		if runs {
			errs = append(errs, w.stopGuest(ctx, g))
		}
		g.turn.Unlock()
	}
	out := wire.FencedAgent{Team: g.Place.Team, Agent: g.Place.Name}
	var err error
	out.Frozen, err = g.frozen() // nothing of it is left that could run
	w.mu.Lock()
	out.CutOff = g.state == guestAsleep
	w.mu.Unlock()
	if err = errors.Join(append(errs, err)...); err != nil {
		out.Problem = err.Error()
	}
	return out, err
}

// releaseGuest lets one wake again.
func (w *Warden) releaseGuest(g *guest) error {
	if err := tree.Remove(g.fencePath()); err != nil {
		return err
	}
	g.fence.Store(nil)
	g.event(record.Life, record.Allowed, "", "released from the fence", nil)
	w.log.Warn("released from the fence", "team", g.Place.Team, "agent", g.Place.Name)
	return nil
}

// guestTeamsOf are the teams with guests that a request means; an empty name
// means all.
func (w *Warden) guestTeamsOf(team string) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.guests {
		if team == "" || name == team {
			out = append(out, name)
		}
	}
	return out
}

func (w *Warden) movingGuests(b *guests) (out []*guest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range b.all {
		if g.state != guestAsleep {
			out = append(out, g)
		}
	}
	return out
}

// releaseGuests lets them wake again; it says whether they could not.
func (w *Warden) releaseGuests(team string) (was bool, err error) {
	w.mu.Lock()
	b := w.guests[team]
	w.mu.Unlock()
	if b == nil || b.fence.Load() == nil {
		return false, nil
	}
	if err := tree.Remove(w.host.GuestsFence(team)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, err
	}
	b.fence.Store(nil)
	return true, nil
}
