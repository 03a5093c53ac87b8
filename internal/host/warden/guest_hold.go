package warden

import (
	"cmp"
	"fmt"
	"slices"
)

// maxVerified bounds from how many guests verify attacks at a time.
const maxVerified = 32

// heldGuests are guests of a team that were awake and do not rest meanwhile.
type heldGuests struct {
	held   []*guest
	asleep []*guest // by name
	more   int      // awake ones beyond the bound
}

// holdGuests keeps the guests that are awake from resting until done is called,
// at most so many, in the order of their names. Who fences, removes or takes one
// down is kept from nothing.
func (w *Warden) holdGuests(team string, most int) (h heldGuests, done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.guests[team]
	if b == nil {
		return h, func() {}
	}
	for _, g := range b.all {
		switch {
		case g.state == guestUp && g.fenced(b) == nil:
			h.held = append(h.held, g)
		case g.state == guestAsleep:
			h.asleep = append(h.asleep, g) // one that is being made or removed included
		}
	}
	byName := func(x, y *guest) int { return cmp.Compare(x.Place.Name, y.Place.Name) }
	slices.SortFunc(h.held, byName)
	slices.SortFunc(h.asleep, byName)
	if len(h.held) > most {
		h.more = len(h.held) - most
		h.held = h.held[:most]
	}
	for _, g := range h.held {
		g.holds++
	}
	held := h.held
	return h, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, g := range held {
			g.holds--
		}
	}
}

// notes says what of a team's guests rows do not show.
func (h heldGuests) notes(narrowed bool) (out []string) {
	if len(h.asleep) > 0 && !narrowed {
		out = append(out, fmt.Sprintf("%d guests sleep: nothing of them runs, so nothing is attacked from them or in them; prove reads who owns their files and ids", len(h.asleep)))
	}
	if h.more > 0 {
		out = append(out, fmt.Sprintf("%d guests more are awake than the %d from which is attacked", h.more, maxVerified))
	}
	if len(h.held) > 5 {
		out = append(out, "each attacker aims at four guests, those after it, so that each of them is somebody's target")
	}
	return out
}
