package warden

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/evidence"
	"bulkhead/internal/host/account"
	"bulkhead/internal/wire"
)

// verify attacks a running team from inside.
func (w *Warden) verify(ctx context.Context, req wire.VerifyRequest, say progress) (*evidence.Report, error) {
	t, err := w.team(req.Team)
	if err != nil {
		return nil, err
	}
	if req.Engine != "" && (len(req.Agents) > 0 || req.Engine != string(engine.Cell) && req.Engine != string(engine.Podman)) {
		return nil, badInput(fmt.Sprintf("engine %.20q and %d agents are no choice", req.Engine, len(req.Agents)), "name agents, or one engine: cell or podman")
	}
	q := evidence.Request{
		Team: t.name, Only: req.Agents, Missing: map[deny.Layer]string{}, Dead: map[string]string{},
		Progress: func(step string) { say("", step) },
	}
	if len(req.Attacks) > 0 {
		q.Attacks = slices.DeleteFunc(evidence.Attacks(), func(a evidence.Attack) bool { return !slices.Contains(req.Attacks, a.ID) })
	}
	for _, l := range t.state.Accepted {
		q.Missing[deny.Layer(l)] = "accepted as missing by the operator (up --accept-missing)"
	}
	w.mu.Lock()
	agents := t.sorted()
	w.mu.Unlock()
	known := map[string]bool{}
	for _, a := range agents {
		known[a.Place.Name] = true
		if u := a.Want.Upstream; u != nil && len(q.Notes) == 0 {
			q.Notes = append(q.Notes, "names are reached through the upstream proxy "+u.URL()+": warden, gateway and dialer keep to the listed names, the kernel to the proxy's address; what the proxy does with a name is not attacked here")
		}
		one, running := a.asTarget(ctx)
		switch {
		case running:
			q.Agents = append(q.Agents, one)
			if req.Engine == a.Want.Engine { // which is never empty
				q.Only = append(q.Only, one.Name)
			}
		case slices.Contains(req.Agents, a.Place.Name):
			return nil, badInput("agent "+a.Place.Name+" does not run, so nothing can be attacked from it", "bulkhead up, or verify the others")
		default:
			if why := a.dead(ctx); why != "" {
				q.Dead[a.Place.Name] = why
				continue
			}
			q.Idle = append(q.Idle, a.Place.Name)
		}
	}
	if req.Engine != "" && len(q.Only) == 0 {
		return nil, badInput("no agent of team "+t.name+" that runs has the engine "+req.Engine, "leave out --engine, or write engine: "+req.Engine+" in the manifest and run bulkhead up")
	}
	guests, done := w.holdGuests(t.name, maxVerified)
	defer done()
	for _, g := range guests.held {
		one, running := g.asTarget(ctx)
		if !running { // its gateway has ended; the next call wakes it anew
			q.Idle = append(q.Idle, one.Name)
			continue
		}
		known[one.Name] = true
		q.Agents = append(q.Agents, one)
	}
	q.Notes = append(q.Notes, guests.notes(len(q.Only) > 0)...)
	for _, name := range req.Agents {
		if !known[name] {
			return nil, w.unattacked(t.name, name)
		}
	}
	q.Neighbours = w.neighbours(ctx, t)
	var down map[string]string
	q.Servers, down = w.attackers(t)
	maps.Copy(q.Dead, down)
	q.Expected = w.expectedOf(t)
	if !req.NoControls {
		first, err := decoyRange()
		if err != nil {
			return nil, err
		}
		q.Decoys = &evidence.DecoyHost{
			Self: w.cfg.Self, Programs: w.programs, FirstID: first, Scratch: filepath.Join(w.host.Run, "decoy"), CgroupRoot: w.cgroupRoot(),
		}
	}
	r, err := evidence.Run(ctx, prober{w: w, team: t.name}, q)
	if err != nil {
		return nil, &fault{wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}}
	}
	return r, nil
}

// neighbours are agents of other teams that run, by team and name.
func (w *Warden) neighbours(ctx context.Context, of *teamRun) []evidence.Agent {
	w.mu.Lock()
	var agents []*agentRun
	for _, name := range slices.Sorted(maps.Keys(w.teams)) {
		if name != of.name {
			agents = append(agents, w.teams[name].sorted()...)
		}
	}
	w.mu.Unlock()
	var out []evidence.Agent
	for _, a := range agents {
		one, running := a.asTarget(ctx)
		if !running {
			continue // an agent that ends meanwhile is unproven, and the report fails
		}
		one.Name = a.Place.Team + "/" + a.Place.Name
		if out = append(out, one); len(out) == maxVerified {
			break
		}
	}
	return out
}

// decoyFirst is where decoys' ids are looked for: systemd leaves everything
// from here to the top of the positive numbers to nobody
// (https://systemd.io/UIDS-GIDS/).
const decoyFirst = 1879048192

// decoyRange finds ids that nobody on this host has.
func decoyRange() (uint32, error) {
	d, err := account.Read("/etc")
	if err != nil {
		return 0, err
	}
	for first := uint32(decoyFirst); first < 2147352576-evidence.DecoyIDs; first += evidence.DecoyIDs {
		last := first + evidence.DecoyIDs - 1
		taken := slices.ContainsFunc(slices.Concat(d.SubUID, d.SubGID), func(r account.Range) bool {
			return r.First <= last && first <= r.Last()
		}) || slices.ContainsFunc(d.Users, func(u account.User) bool { return u.UID >= first && u.UID <= last })
		if !taken {
			return first, nil
		}
	}
	return 0, errors.New("no free block of ids for decoys between 1879048192 and 2147352576 in /etc/subuid; verify --no-controls does without")
}
