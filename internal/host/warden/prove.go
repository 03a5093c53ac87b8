package warden

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
	"bulkhead/internal/wire"
)

// prove makes exact statements about a running team from what the kernel holds.
func (w *Warden) prove(ctx context.Context, req wire.TeamRequest) (*prove.Report, error) {
	t, err := w.team(req.Team)
	if err != nil {
		return nil, err
	}
	q := prove.Request{Team: t.name, Table: nft.Name, Filters: &w.filters}
	w.mu.Lock()
	agents := t.sorted()
	w.mu.Unlock()
	for _, a := range agents {
		one, err := a.subject(ctx)
		if err != nil {
			return nil, fmt.Errorf("agent %s: %w", a.Place.Name, err)
		}
		if f := a.fence.Load(); f != nil {
			one.Processes = nil // frozen threads stop for no tracer: nothing can be said of them
			one.Fenced = "since " + f.Since.Format(time.RFC3339) + " by " + f.By + why(f.Why)
		}
		q.Agents = append(q.Agents, one)
	}
	if t.adapter != nil {
		one, err := t.adapter.subject()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.adapter.place.Name, err)
		}
		q.Agents = append(q.Agents, one)
	}
	for _, v := range w.servicesOf(t) {
		one, err := v.subject()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.place.Name, err)
		}
		q.Agents = append(q.Agents, one)
	}
	guests, done := w.holdGuests(t.name, layout.GuestRanges)
	defer done()
	for _, g := range guests.held {
		one, err := g.subject(ctx)
		if err != nil {
			return nil, fmt.Errorf("guest %s: %w", g.Place.Name, err)
		}
		q.Agents = append(q.Agents, one)
	}
	q.AsleepName = wire.Guests
	for _, g := range guests.asleep {
		if _, there, err := tree.Owner(g.Place.GuestFile()); err == nil && !there {
			continue // it is being made, or removed
		}
		q.Asleep = append(q.Asleep, prove.Agent{Name: g.Place.Name, IDs: g.IDs, Places: g.sleeping()})
	}
	q.Others = w.idsOfOthers(t)
	r, err := prove.Team(ctx, q)
	if err != nil {
		return nil, &fault{wire.Failure{Message: err.Error(), Exit: wire.ExitFailed, Mend: "nothing was proven; try again, and look at `bulkhead doctor` when it stays"}}
	}
	return r, nil
}

// idsOfOthers are the agents of the other teams, guests included.
func (w *Warden) idsOfOthers(t *teamRun) (out []prove.Agent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.teams {
		if o == t {
			continue
		}
		for _, a := range o.sorted() {
			out = append(out, prove.Agent{Name: o.name + "/" + a.Place.Name, IDs: a.IDs})
		}
		if o.adapter != nil {
			out = append(out, prove.Agent{Name: o.name + "/" + o.adapter.place.Name, IDs: layout.IDs{Account: o.adapter.uid}, Server: true})
		}
		for _, g := range w.guestsOfLocked(o.name) {
			out = append(out, prove.Agent{Name: o.name + "/" + g.Place.Name, IDs: g.IDs})
		}
	}
	return out
}

// subject is the agent as far as it is not for the kernel to say: its ids, its
// cgroups, and the addresses that the guard pinned for what its manifest lists.
func (a *agentRun) subject(ctx context.Context) (prove.Agent, error) {
	one := prove.Agent{Name: a.Place.Name, Account: a.Place.Account, IDs: a.IDs, Pins: a.allowedPins(), Places: a.places(), Resources: a.resources()}
	labels, err := a.labels()
	if err != nil {
		return one, err
	}
	one.Labels = labels
	top := filepath.Join(a.Place.Team, a.Place.Name)
	group, err := a.w.cgroups.Group(top)
	if err != nil {
		return one, err
	}
	names, err := group.Children()
	if err != nil {
		return one, err
	}
	for _, name := range names {
		g, err := a.w.cgroups.Group(filepath.Join(top, name))
		if err != nil {
			return one, err
		}
		pids, err := g.Procs()
		if err != nil {
			return one, err
		}
		found := false
		for _, pid := range pids {
			role, err := a.roleOf(name, pid)
			if errors.Is(err, os.ErrNotExist) {
				continue // it has ended
			}
			if err != nil {
				return one, err
			}
			found = found || role != ""
			one.Processes = append(one.Processes, prove.Process{PID: pid, Role: role})
		}
		if !found {
			continue
		}
		l, err := boundsOf(g)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return one, err
		}
		one.Limits = append(one.Limits, l...)
	}
	return one, ctx.Err()
}

// boundsOf reads what bounds a cgroup.
func boundsOf(g *cgroup.Group) ([]prove.Limit, error) {
	l, err := g.Limits()
	if err != nil {
		return nil, err
	}
	var out []prove.Limit
	for _, b := range []struct {
		what string
		v    int64
	}{{"memory in bytes", l.MemoryBytes}, {"processes", l.PIDs}, {"thousandths of a core", l.MilliCPU}} {
		out = append(out, prove.Limit{What: b.what, File: "cgroup " + g.Full(), Value: fmt.Sprint(b.v), Bound: b.v > 0})
	}
	return out, nil
}

// roleOf says by which profile a process must be confined: by the name of its
// cgroup, which root gave, and its id. Those of the account itself (podman,
// conmon, the launcher) are walled in by the account's cell.
func (a *agentRun) roleOf(group string, pid int) (engine.Role, error) {
	c, err := confinementOf(pid)
	if err != nil {
		return "", err
	}
	switch uid := c.uids[0]; {
	case uid == a.IDs.Dialer:
		return engine.RoleDialer, nil
	case uid < a.IDs.Base || uid > a.IDs.Last():
		return "", nil
	}
	switch {
	case group == gatewayName:
		return engine.RoleGateway, nil
	case strings.HasPrefix(group, launcher.CodePrefix): // a cell under every engine
		return engine.RoleRun, nil
	case a.relayed(runtimeName) && group != gatewayName:
		return "", nil // gVisor's own processes, by gVisor's own filter (docs/contracts/prove.md)
	case group == runtimeName:
		return engine.RoleRuntime, nil
	case strings.HasPrefix(group, "ready-"), strings.HasPrefix(group, "run-"):
		return engine.RoleRun, nil
	}
	return "", fmt.Errorf("process %d in cgroup %s of %s has id %d of the agent's range and is none of its containers'", pid, group, a.Place.Name, c.uids[0])
}

// allowedPins are the pins of destinations that the policy in force lists.
func (a *agentRun) allowedPins() []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range a.w.table.Pins(a.Place.Account) {
		for _, d := range e.Destinations {
			if a.w.pins.Lists(a.Place.Account, d) {
				out = append(out, e.Address)
				break
			}
		}
	}
	return out
}
