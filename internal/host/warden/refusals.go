package warden

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// maxRefusals bounds what is kept for one agent, which can ask for endless
// names. Beyond it only the counters of the pin server go on.
const maxRefusals = 256

// refusals are the pins that this warden denied, folded by destination.
type refusals struct {
	since time.Time

	mu sync.Mutex
	of map[string]map[refusal]*wire.Denial // by account
}

type refusal struct {
	target string
	code   deny.Code
}

func newRefusals() *refusals {
	return &refusals{since: time.Now().UTC(), of: map[string]map[refusal]*wire.Denial{}}
}

// add counts one denial and says whether it is the first of its kind.
func (f *refusals) add(account string, r *deny.Reason, now time.Time) (first bool) {
	now = now.UTC()
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.of[account]
	if of == nil {
		of = map[refusal]*wire.Denial{}
		f.of[account] = of
	}
	k := refusal{r.What, r.Code}
	if d := of[k]; d != nil {
		d.Count++
		d.Last = now
		return false
	}
	if len(of) >= maxRefusals {
		return false
	}
	of[k] = &wire.Denial{Target: r.What, Reason: *r, Count: 1, First: now, Last: now, By: []string{"warden"}}
	return true
}

// list gives an account's denials, the latest last.
func (f *refusals) list(account string) []wire.Denial {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []wire.Denial{}
	for _, d := range f.of[account] {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(x, y wire.Denial) int { return cmp.Or(x.Last.Compare(y.Last), cmp.Compare(x.Target, y.Target)) })
	return out
}

func (f *refusals) forget(account string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, account)
}

// pinDenied hears of every refusal of the pin server. Only the first of its
// kind is logged: an agent must not be able to fill the warden's log.
func (w *Warden) pinDenied(acct string, r *deny.Reason) {
	if w.refused.add(acct, r, time.Now()) {
		for _, a := range w.everyAgent() {
			if a.Place.Account == acct {
				a.event(record.Egress, record.Denied, r.What, "by the warden", r)
			}
		}
		w.log.Info("pin denied", "kind", record.Egress, "account", acct, "what", r.What, "code", r.Code, "why", r.Why, "mend", r.Mend)
	}
}

// denialsOf tells what the pin server refused and what the kernel counted.
func (w *Warden) denialsOf(req wire.AgentRequest) (*wire.DenialsResult, error) {
	t, err := w.team(req.Team)
	if err != nil {
		return nil, err
	}
	names, asked := w.splitGuests(t.name, req.Agents)
	for _, n := range names {
		if _, err := w.agent(t.name, n); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	agents := t.sorted()
	w.mu.Unlock()
	for _, g := range asked { // only who is named: there may be thousands
		agents = append(agents, g.agentRun)
	}
	res := &wire.DenialsResult{SchemaVersion: 1, Team: t.name, Agents: []wire.AgentDenials{}, Adapter: t.adapter != nil}
	for _, a := range agents {
		if len(req.Agents) > 0 && !slices.Contains(req.Agents, a.Place.Name) {
			continue
		}
		c := w.pins.Counters(a.Place.Account)
		d := wire.AgentDenials{
			Agent: a.Place.Name, Denials: w.refused.list(a.Place.Account),
			Witness: wire.DenialWitness{PinsGranted: c.Pinned, PinsDenied: c.Denied, PinsByCode: c.ByCode, Since: w.refused.since},
		}
		if a.Want.Guest && len(a.Want.Egress) == 0 {
			// No dialer, and so no counter of one.
		} else if st, err := w.table.Inspect(a.Place.Account); err != nil {
			d.Witness.Problem = fmt.Sprintf("nftables cannot be read: %v", err)
		} else {
			d.Witness.RefusedPackets = st.Refused
		}
		res.Agents = append(res.Agents, d)
	}
	return res, nil
}
