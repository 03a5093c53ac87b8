package warden

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/host/nft"
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

	// deciding is held while something of the guest is started, and while it is
	// decided that it is fenced or removed: who comes later sees what was decided.
	// It is never waited for with Warden.mu held.
	deciding sync.Mutex
	removing bool // it goes, and no fence would be anybody's; guarded by deciding

	file guestFile // does not change once made

	state guestState // guarded by Warden.mu
	seats []string   // servers that have it as a member; guarded by Warden.mu
	holds int        // who reads or attacks it now, so that it does not rest; guarded by Warden.mu
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

// anyAgent finds an agent of the manifest, or a guest.
func (w *Warden) anyAgent(team, name string) (*agentRun, error) {
	t, err := w.team(team)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	g := w.guestsOfLocked(t.name)[name]
	w.mu.Unlock()
	if g != nil {
		return g.agentRun, nil
	}
	return w.agent(t.name, name)
}

// tokenFor finds the agent or guest that an operator asks a token for.
func (w *Warden) tokenFor(team, name string) (layout.Agent, error) {
	a, err := w.anyAgent(team, name)
	if err != nil {
		return layout.Agent{}, err
	}
	return a.Place, nil
}

// splitGuests takes the guests of a team out of the names of a request.
func (w *Warden) splitGuests(team string, names []string) (agents []string, found []*guest) {
	t, err := w.team(team)
	if err != nil {
		return names, nil // which will be said of them
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		if g := w.guestsOfLocked(t.name)[n]; g != nil {
			if !slices.Contains(found, g) {
				found = append(found, g)
			}
			continue
		}
		agents = append(agents, n)
	}
	return agents, found
}
