package warden

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"bulkhead/internal/host/tree"
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
