package warden

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/host"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// adminToken reads the hash of the token by which guests are made.
func adminToken(g *team.Guests) (admintoken.Hash, error) {
	raw, err := tree.ReadFile(g.Token.Path, admintoken.MaxText+16, true)
	if err != nil {
		return "", fmt.Errorf("%s: front.guests.adminTokenFile: %w", g.Token.Position, err)
	}
	h, err := admintoken.Read(raw)
	if err != nil {
		return "", fmt.Errorf("%s: front.guests.adminTokenFile %s: %w", g.Token.Position, g.Token.Path, err)
	}
	return h, nil
}

// checkGuests says what of a manifest's wish for guests cannot be kept.
func (w *Warden) checkGuests(m *team.Manifest) []string {
	var out []string
	w.mu.Lock()
	for _, a := range m.Agents {
		if w.guestsOfLocked(m.Team)[a.Name] != nil {
			out = append(out, fmt.Sprintf("agents.%s: a guest of this team has that name; rename the agent, or remove the guest: DELETE /admin/agents/%s", a.Name, a.Name))
		}
	}
	w.mu.Unlock()
	g := m.Guests()
	if g == nil {
		return out
	}
	if err := w.accounts.Check(guestsRequest()); err != nil {
		out = append(out, err.Error())
	}
	if _, err := adminToken(g); err != nil {
		out = append(out, err.Error())
	}
	return out
}

// guestsRequest describes the account that owns the ids of all guests.
func guestsRequest() account.Request {
	return account.Request{Name: layout.GuestsAccount, Home: "/nonexistent", Range: layout.GuestBlock}
}

// foundGuests has the ids of guests set aside, once a team wants some, and reads
// those that there are. The caller holds w.change, and has the system.
func (w *Warden) foundGuests(ctx context.Context, t *teamRun) error {
	paths, err := filepath.Glob(w.host.Agent(t.name, "*").GuestFile())
	if err != nil {
		return fmt.Errorf("warden: %w", err) // the pattern is constant
	}
	marks, err := filepath.Glob(w.host.Agent(t.name, "*").GuestMark())
	if err != nil {
		return fmt.Errorf("warden: %w", err) // the pattern is constant
	}
	if t.manifest.Guests() == nil && len(paths)+len(marks) == 0 {
		return nil
	}
	_, block, err := w.accounts.Ensure(ctx, guestsRequest())
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.sys.guests = block
	book := w.guests[t.name]
	w.mu.Unlock()
	if book == nil {
		book = &guests{all: map[string]*guest{}}
		book.loadFence(w.host.GuestsFence(t.name))
	}
	book.gate.Lock()
	book.closed = false
	book.gate.Unlock()
	w.mu.Lock()
	w.guests[t.name] = book
	known := len(book.all) > 0
	w.mu.Unlock()
	if known {
		return nil
	}
	var errs []error
	for _, path := range marks {
		errs = append(errs, w.finishGuest(ctx, t.name, filepath.Base(filepath.Dir(path))))
	}
	for _, path := range paths {
		name := filepath.Base(filepath.Dir(path))
		if err := w.loadGuest(t, book, name); err != nil {
			errs = append(errs, fmt.Errorf("guest %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// settleGuests ends those that run when the manifest says something else of
// them than it did: who may still is woken by the next call. The caller holds
// w.change, and the manifest is in force.
func (w *Warden) settleGuests(ctx context.Context, t *teamRun) error {
	w.mu.Lock()
	b := w.guests[t.name]
	w.mu.Unlock()
	if b == nil {
		return nil
	}
	from := digestOf(struct {
		Guests             *team.Guests
		Services, Accepted []string
	}{t.manifest.Guests(), guestServices(t.manifest), t.state.Accepted})
	if b.from == "" || b.from == from {
		b.from = from
		return nil
	}
	b.gate.Lock() // nobody makes, wakes or removes one
	defer b.gate.Unlock()
	if err := w.endGuests(ctx, b); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range b.all {
		g.accepted, g.Services = t.state.Accepted, guestServices(t.manifest)
	}
	b.from = from
	return nil
}

// finishGuest ends what a crash left of the making or removal of a guest.
func (w *Warden) finishGuest(ctx context.Context, team, name string) error {
	place := w.host.Agent(team, name)
	_, whole, err := tree.Owner(place.GuestFile())
	if err != nil {
		return err
	}
	if whole {
		return tree.Remove(place.GuestMark())
	}
	if _, _, err := w.dismiss(ctx, place, true); err != nil {
		return err
	}
	return w.forgetIDs(team, name)
}

// loadGuest reads one guest. When its place was taken while its team was down
// it gets another: its files are given to the new ids when it wakes.
func (w *Warden) loadGuest(t *teamRun, book *guests, name string) error {
	place := w.host.Agent(t.name, name)
	var f guestFile
	if _, err := readJSON(place.GuestFile(), &f); err != nil {
		return err
	}
	if f.Version != stateVersion || f.Agent == nil || f.Agent.Name != name || f.Agent.Tools == nil {
		return fmt.Errorf("warden: %s is not a guest's", place.GuestFile())
	}
	w.mu.Lock()
	at, err := w.guestPlaceLocked(f.Place)
	if err != nil {
		w.mu.Unlock()
		return err
	}
	moved := at != f.Place
	f.Place = at
	g := w.newGuest(t, f)
	if _, err := os.Lstat(runStatePath(place)); err == nil {
		g.state = guestMoving // a former warden left it running, and it is about to be adopted
		for _, s := range g.Services {
			if _, err := os.Lstat(place.ServiceSocket(s)); err == nil {
				g.seats = append(g.seats, s)
			}
		}
	}
	book.all[name] = g
	w.mu.Unlock()
	if moved {
		if err := writeJSON(place.GuestFile(), f); err != nil {
			return err
		}
	}
	return w.ledger.Announce(g.idRange())
}

func (w *Warden) newGuest(t *teamRun, f guestFile) *guest {
	a := &agentRun{w: w, accepted: t.state.Accepted, Agent: host.Agent{
		Place: w.host.Agent(t.name, f.Agent.Name), Want: f.Agent, Services: guestServices(t.manifest), IDs: layout.GuestIDs(w.sys.guests.First, f.Place),
	}}
	a.loadFence() // none of one that is not made yet
	return &guest{agentRun: a, file: f}
}

// guestServices are the host's servers to which a guest's gateway gets a socket:
// no topic of the manifest can name a guest.
func guestServices(m *team.Manifest) []string {
	return slices.DeleteFunc(m.Services(), func(s string) bool { return s == layout.TopicsName })
}

func (g *guest) idRange() ledger.Thing {
	return ledger.Thing{Kind: ledger.IDRange, Name: fmt.Sprintf("%d-%d", g.IDs.Base, g.IDs.Last()), Team: g.Place.Team, Agent: g.Place.Name}
}

// forgetIDs gives the range of a guest back that is gone, or whose team is down.
func (w *Warden) forgetIDs(team, agent string) error {
	return w.ledger.Forget(w.ledger.Things(func(x ledger.Thing) bool { return x.Kind == ledger.IDRange && x.Team == team && x.Agent == agent })...)
}

// guestPlaceLocked gives a place in the block: the wanted one when nobody has
// it; a negative one is any. The caller holds w.mu.
func (w *Warden) guestPlaceLocked(want int) (int, error) {
	taken := map[int]bool{}
	for _, b := range w.guests {
		for _, g := range b.all {
			taken[g.file.Place] = true
		}
	}
	if want >= 0 && want < layout.GuestRanges && !taken[want] {
		return want, nil
	}
	for i := range layout.GuestRanges {
		if !taken[i] {
			return i, nil
		}
	}
	return 0, fmt.Errorf("warden: all %d ranges of ids for guests are taken; remove some", layout.GuestRanges)
}
