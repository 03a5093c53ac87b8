package warden

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"bulkhead/internal/deny"
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
	moving := w.movingGuests(b)
	errs := make([]error, len(moving))
	var all sync.WaitGroup
	for i, g := range moving { // at once: their turn may be another's
		all.Go(func() { _, errs[i] = g.killFenced(w.killGuest) })
	}
	all.Wait()
	return errors.Join(append(errs, err, w.endGuests(ctx, b))...)
}

// killGuest ends what runs of one at this moment.
func (w *Warden) killGuest(g *guest) error {
	return w.killCgroup(filepath.Join(g.Place.Team, g.Place.Name))
}

// unlessFenced starts something of the guest, unless it is fenced. A fence that
// comes meanwhile waits until what was started can be ended ([guest.killFenced]).
func (g *guest) unlessFenced(b *guests, start func() error) error {
	g.deciding.Lock()
	defer g.deciding.Unlock()
	if f := g.fenced(b); f != nil {
		return errors.New(f.Why)
	}
	return start()
}

// killFenced ends what runs of a guest whose fence is up, and what was about to
// run: from then on nothing of it is started. It says whether the guest is being
// removed, which then was decided before.
func (g *guest) killFenced(kill func(*guest) error) (removing bool, err error) {
	err = kill(g) // also the launcher of a start that hangs, which then is over
	g.deciding.Lock()
	defer g.deciding.Unlock()
	return g.removing, errors.Join(err, kill(g))
}

// remove decides that the guest goes, unless it is fenced: what a fenced one did
// is the operator's to look at, and a new one of its name would have no fence.
func (g *guest) remove(b *guests) *deny.Reason {
	g.deciding.Lock()
	defer g.deciding.Unlock()
	if reason := g.fenced(b); reason != nil {
		return reason
	}
	g.removing = true
	return nil
}

// fenceGuest ends one guest and keeps it from waking until it is released. What
// is said of it is read back.
func (w *Warden) fenceGuest(ctx context.Context, g *guest, f fenceFile) (wire.FencedAgent, error) {
	var errs []error
	if g.fence.Load() == nil {
		errs = append(errs, writeJSON(g.fencePath(), f))
		g.fence.Store(&f.Fence) // whatever the disk said
	}
	removing, err := g.killFenced(w.killGuest) // at once: its turn may be another's
	errs = append(errs, err)
	w.mu.Lock()
	runs := g.state != guestAsleep
	w.mu.Unlock()
	if runs || removing {
		g.turn.Lock()
		w.mu.Lock()
		runs = g.state != guestAsleep
		w.mu.Unlock()
		if runs {
			errs = append(errs, w.stopGuest(ctx, g))
		}
		g.turn.Unlock()
	}
	if removing {
		errs = append(errs, fmt.Errorf("guest %s was being removed when the fence came: it is gone with its data, and its name is not fenced; to keep any from being made or waking: `bulkhead panic`", g.Place.Name))
	}
	out := wire.FencedAgent{Team: g.Place.Team, Agent: g.Place.Name}
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
