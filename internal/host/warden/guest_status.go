package warden

import (
	"slices"
	"time"

	control "bulkhead/internal/control/protocol"
	"bulkhead/internal/wire"
)

// guestList is the answer to GET.
type guestList struct {
	SchemaVersion int        `json:"schemaVersion"`
	Team          string     `json:"team"`
	Max           int64      `json:"max"`
	Agents        []oneGuest `json:"agents"`
}

type oneGuest struct {
	Name          string    `json:"name"`
	Made          time.Time `json:"made"`
	State         string    `json:"state"` // asleep, awake
	Egress        []string  `json:"egress"`
	Allow         []string  `json:"allow"`
	RatePerMinute int64     `json:"ratePerMinute"`
	MemoryBytes   int64     `json:"memoryBytes"`
	StorageBytes  int64     `json:"storageBytes"`
}

func (w *Warden) listGuests(b *guests, o control.AdminOrder) guestList {
	out := guestList{SchemaVersion: 1, Team: o.Team, Agents: []oneGuest{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.teams[o.Team]; t != nil && t.manifest.Guests() != nil {
		out.Max = t.manifest.Guests().Max
	}
	for _, g := range b.sortedLocked() {
		if o.Name != "" && g.Place.Name != o.Name {
			continue
		}
		t := g.Want.Tools
		one := oneGuest{
			Name: g.Place.Name, Made: g.file.Made, State: "asleep", Egress: []string{}, Allow: t.Allowed(),
			RatePerMinute: t.RatePerMinute, MemoryBytes: t.MemoryBytes, StorageBytes: t.StorageBytes,
		}
		if g.state != guestAsleep {
			one.State = "awake"
		}
		for _, d := range g.Want.Egress {
			one.Egress = append(one.Egress, d.Target())
		}
		out.Agents = append(out.Agents, one)
	}
	return out
}

// sortedLocked are a team's guests by name. The caller holds Warden.mu.
func (b *guests) sortedLocked() []*guest {
	out := make([]*guest, 0, len(b.all))
	for _, g := range b.all {
		out = append(out, g)
	}
	slices.SortFunc(out, func(x, y *guest) int {
		if x.Place.Name < y.Place.Name {
			return -1
		}
		return 1
	})
	return out
}

// shownGuests is how many names a status gives: with more they are counted.
const shownGuests = 20

// guestStatus is what status says of a team's guests; nil: it has none.
func (w *Warden) guestStatus(team string) *wire.GuestStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.guests[team]
	if b == nil {
		return nil
	}
	out := &wire.GuestStatus{Made: len(b.all), Awake: []string{}, Fence: b.fence.Load()}
	if t := w.teams[team]; t != nil && t.manifest.Guests() != nil {
		out.Max, out.MaxAwake = t.manifest.Guests().Max, t.manifest.Guests().Awake
	}
	for _, g := range b.sortedLocked() {
		if g.fence.Load() != nil && len(out.Fenced) < shownGuests {
			out.Fenced = append(out.Fenced, g.Place.Name)
		}
		if g.state != guestAsleep {
			out.Running++
			out.MemoryBytes += w.memoryOf(g.Place.Team + "/" + g.Place.Name)
			if len(out.Awake) < shownGuests {
				out.Awake = append(out.Awake, g.Place.Name)
			}
		} else if len(out.Asleep) < shownGuests {
			out.Asleep = append(out.Asleep, g.Place.Name)
		}
	}
	return out
}
