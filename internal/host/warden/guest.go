package warden

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/host"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// guestSpool bounds the records that wait in a guest's gateway.
const guestSpool = 2 << 20

// guests are those of one team. They stay on disk through a down without
// --purge, and are there again with the next up.
type guests struct {
	// gate is held for reading by whoever makes, wakes or removes one, and for
	// writing by who takes the team down.
	gate   sync.RWMutex
	closed bool // guarded by gate

	fence atomic.Pointer[wire.Fence] // nil: they are not fenced

	all  map[string]*guest // guarded by Warden.mu
	from string            // what of the manifest those that run were started under; guarded by Warden.change
}

// guestState is what a guest's gateway does.
type guestState int

const (
	guestAsleep guestState = iota
	guestMoving            // it starts or stops
	guestUp
)

// guest is one agent without a runtime. turn serialises everything that is done
// with it.
type guest struct {
	*agentRun
	turn sync.Mutex
	file guestFile // does not change once made

	state guestState // guarded by Warden.mu
	seats []string   // servers that have it as a member; guarded by Warden.mu
	since time.Time  // of state; guarded by Warden.mu
}

// guestFile is all that a guest is made from: layout.Agent.GuestFile. It is
// there from when everything else of the guest is.
type guestFile struct {
	Version int         `json:"version"`
	Place   int         `json:"place"` // in the block of ids, layout.GuestIDs
	Made    time.Time   `json:"made"`
	Key     string      `json:"key,omitempty"` // Idempotency-Key of the request
	Agent   *team.Agent `json:"agent"`
}

// dials says whether the guest has a dialer, and with it rules.
func (g *guest) dials() bool { return len(g.Want.Egress) > 0 }

// same says whether two requests ask for the same guest.
func (f guestFile) same(o *team.Agent) bool {
	sum := func(a *team.Agent) string {
		c := *a
		c.Egress = slices.Clone(c.Egress)
		for i := range c.Egress {
			c.Egress[i].Line, c.Egress[i].Position = 0, "" // of the text, not of the guest
		}
		raw, err := json.Marshal(c)
		if err != nil {
			panic("warden: an agent does not encode: " + err.Error()) // plain data: cannot happen
		}
		h := sha256.Sum256(raw)
		return hex.EncodeToString(h[:])
	}
	return sum(f.Agent) == sum(o)
}

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
	}{t.manifest.Guests(), t.manifest.Services(), t.state.Accepted})
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
		g.accepted, g.Services = t.state.Accepted, t.manifest.Services()
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
		Place: w.host.Agent(t.name, f.Agent.Name), Want: f.Agent, Services: t.manifest.Services(), IDs: layout.GuestIDs(w.sys.guests.First, f.Place),
	}}
	return &guest{agentRun: a, file: f}
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

// guestsOfLocked are a team's, by name. The caller holds w.mu.
func (w *Warden) guestsOfLocked(team string) map[string]*guest {
	if b := w.guests[team]; b != nil {
		return b.all
	}
	return nil
}

// guestsLocked are those of every team that keep selects. The caller holds w.mu.
func (w *Warden) guestsLocked(keep func(*guest) bool) []*agentRun {
	var out []*agentRun
	for _, b := range w.guests {
		for _, g := range b.all {
			if keep(g) {
				out = append(out, g.agentRun)
			}
		}
	}
	return out
}

// guestIDsLocked is the block of guests' ids, all of which get nothing but what
// a dialer of one that runs is given. The caller holds w.mu.
func (w *Warden) guestIDsLocked() []nft.Range {
	if w.sys.guests.Count == 0 {
		return nil
	}
	return []nft.Range{{First: w.sys.guests.First, Last: w.sys.guests.Last()}}
}

// guestBook gives a team's guests, held open for the caller, who calls done.
func (w *Warden) guestBook(team string) (_ *guests, done func(), err error) {
	w.mu.Lock()
	b := w.guests[team]
	w.mu.Unlock()
	if b == nil {
		return nil, nil, fmt.Errorf("team %s has no guests", team)
	}
	b.gate.RLock()
	if b.closed {
		b.gate.RUnlock()
		return nil, nil, fmt.Errorf("team %s is being taken down", team)
	}
	return b, b.gate.RUnlock, nil
}

func (w *Warden) guest(b *guests, name string) *guest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return b.all[name]
}

// tokenFor finds the agent or guest that an operator asks a token for.
func (w *Warden) tokenFor(team, name string) (layout.Agent, error) {
	t, err := w.team(team)
	if err != nil {
		return layout.Agent{}, err
	}
	w.mu.Lock()
	g := w.guestsOfLocked(t.name)[name]
	w.mu.Unlock()
	if g != nil {
		return g.Place, nil
	}
	a, err := w.agent(t.name, name)
	if err != nil {
		return layout.Agent{}, err
	}
	return a.Place, nil
}

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
