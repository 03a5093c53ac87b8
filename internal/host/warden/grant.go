package warden

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/dial"
	"bulkhead/internal/host"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// Bounds of temporary destinations.
const (
	maxGrants   = 64
	maxGrantFor = 7 * 24 * time.Hour // what is needed for longer belongs into the manifest
	grantTick   = time.Second
	grantAsk    = 5 * time.Second // a gateway's answer
)

// grantBook holds an agent's temporary destinations. The file in the agent's
// run folder is what counts: it survives the warden, and a reboot ends it.
type grantBook struct {
	mu     sync.Mutex
	list   []wire.Grant
	loaded bool
	base   *team.Agent // what the policy in force was made from
}

func grantsPath(a *host.Agent) string { return filepath.Join(a.Place.Run, "grants.json") }

// loadLocked reads the file once. A file that cannot be read grants nothing.
func (b *grantBook) loadLocked(a *host.Agent) error {
	if b.loaded {
		return nil
	}
	var on struct {
		Grants []wire.Grant `json:"grants"`
	}
	if _, err := readJSON(grantsPath(a), &on); err != nil {
		return err
	}
	b.list, b.loaded = on.Grants, true
	return nil
}

func (b *grantBook) saveLocked(a *host.Agent, list []wire.Grant) error {
	if err := writeJSON(grantsPath(a), wire.Grants{Grants: list}); err != nil {
		return err
	}
	b.list = list
	return nil
}

func (b *grantBook) all() []wire.Grant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list)
}

// open are those that are not over.
func (b *grantBook) open(now time.Time) []wire.Grant {
	return slices.DeleteFunc(b.all(), func(g wire.Grant) bool { return !now.Before(g.Until) })
}

// policy is the manifest's and what is granted beside it. It becomes the base
// of later changes.
func (a *agentRun) policy() *dial.Policy {
	b := &a.grants
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base = a.Want
	if err := b.loadLocked(&a.Agent); err != nil {
		a.w.log.Error("temporary destinations are lost, and closed", "team", a.Place.Team, "agent", a.Place.Name, "error", err)
		b.loaded = true
	}
	return dial.NewPolicy(b.base).With(b.list)
}

// grantsListener makes the socket on which the gateway hears of changes.
func (a *agentRun) grantsListener() (*os.File, error) {
	ln, err := listen(a.Place.GrantsSocket(), 0o600, 0)
	if err != nil {
		return nil, err
	}
	f, err := ln.File()
	if err = errors.Join(err, ln.Close()); err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	return f, nil
}

// setLocked makes list the agent's: on disk, in the pin server with the kernel
// behind it, and, when tell is set, in the gateway.
func (a *agentRun) setLocked(ctx context.Context, list []wire.Grant, tell bool) error {
	b := &a.grants
	if b.base == nil {
		return fmt.Errorf("agent %s does not run", a.Place.Name)
	}
	if err := b.saveLocked(&a.Agent, list); err != nil {
		return err
	}
	if err := a.w.pins.SetPolicy(a.Place.Account, dial.NewPolicy(b.base).With(list)); err != nil {
		return err
	}
	if !tell {
		return nil
	}
	return a.tellGateway(ctx, list)
}

func (a *agentRun) tellGateway(ctx context.Context, list []wire.Grant) error {
	ctx, cancel := context.WithTimeout(ctx, grantAsk)
	defer cancel()
	c, err := dialWire(ctx, a.Place.GrantsSocket(), wire.GrantsProtocol, wire.GrantsVersion)
	if err != nil {
		return fmt.Errorf("the gateway of %s cannot be told: %w", a.Place.Name, err)
	}
	defer func() { _ = c.Close() }()
	var ok struct{}
	if err := ask(ctx, c, wire.VerbGrants, wire.Grants{Grants: list}, &ok); err != nil {
		return fmt.Errorf("the gateway of %s did not take it: %w", a.Place.Name, err)
	}
	return nil
}

// allow opens a destination for a while. It answers only after the kernel was
// read back and the gateway knows; whatever fails on the way takes it back.
func (w *Warden) allow(ctx context.Context, req wire.AllowRequest, uid uint32) (*wire.AllowResult, error) {
	a, err := w.agent(req.Team, req.Agent)
	if err != nil {
		return nil, err
	}
	if err := a.fencedFault(); err != nil {
		return nil, err
	}
	d, err := team.ParseDestination(req.Target)
	if err != nil {
		return nil, badInput(err.Error(), "name one host:port, as in the manifest")
	}
	if d.Wild() {
		return nil, badInput(req.Target+" covers more than one name", "allow each name by itself; a wildcard belongs into the manifest")
	}
	if req.For < time.Second || req.For > maxGrantFor {
		return nil, badInput(fmt.Sprintf("%s is not between a second and %s", req.For, maxGrantFor), "say --for 1h; what is needed for longer belongs into the manifest")
	}
	b := &a.grants
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.base == nil {
		return nil, &fault{wire.Failure{Message: "agent " + a.Place.Name + " does not run", Mend: "bulkhead up", Exit: wire.ExitFailed}}
	}
	host := d.Host
	if host == "" {
		host = d.Address.String()
	}
	if _, reason := dial.NewPolicy(b.base).Check(host, d.Port); reason == nil {
		return nil, badInput(d.Target()+" is in the manifest of "+a.Place.Name+" already", "see `bulkhead why "+a.Place.Name+" "+d.Target()+"`")
	}
	now := time.Now().UTC()
	g := wire.Grant{Target: d.Target(), Until: now.Add(req.For), Once: req.Once, At: now, By: uid}
	before := b.list
	next := slices.DeleteFunc(slices.Clone(before), func(x wire.Grant) bool { return x.Target == g.Target || !now.Before(x.Until) })
	if len(next) >= maxGrants {
		return nil, badInput(fmt.Sprintf("agent %s has %d temporary destinations already", a.Place.Name, len(next)), "revoke some, or list them in the manifest")
	}
	res := &wire.AllowResult{SchemaVersion: 1, Team: a.Place.Team, Agent: a.Place.Name, Grant: g}
	err = a.setLocked(ctx, append(next, g), false)
	if err == nil {
		res.Pinned, err = w.pinAndReadBack(ctx, a, host, d.Port)
	}
	if err == nil {
		err = a.tellGateway(ctx, b.list)
	}
	if err != nil {
		back := a.setLocked(context.WithoutCancel(ctx), before, true)
		if back != nil {
			w.log.Error("taking a temporary destination back", "agent", a.Place.Name, "target", g.Target, "error", back)
		}
		var f *fault
		if errors.As(err, &f) {
			return nil, err
		}
		return nil, &fault{wire.Failure{Message: fmt.Sprintf("%s is not allowed: %v", g.Target, err), Mend: "nothing was opened; mend the cause and try again", Exit: wire.ExitFailed}}
	}
	res.Witness = fmt.Sprintf("nftables: %d addresses in the set of %s; the gateway took it", len(res.Pinned), a.Place.Account)
	a.event(record.Egress, record.Allowed, g.Target, "a temporary destination until "+g.Until.Format(time.RFC3339), nil)
	w.log.Info("temporary destination", "team", a.Place.Team, "agent", a.Place.Name, "target", g.Target, "until", g.Until, "once", g.Once, "uid", uid)
	return res, nil
}

func (w *Warden) pinAndReadBack(ctx context.Context, a *agentRun, host string, port uint16) ([]netip.AddrPort, error) {
	pinned, reason, err := w.pins.Pin(ctx, a.Place.Account, host, port)
	if err != nil {
		return nil, err
	}
	if reason != nil {
		return nil, &fault{wire.Failure{Message: reason.Error(), Mend: reason.Mend, Exit: wire.ExitFailed}}
	}
	missing, err := w.table.ReadBack(a.Place.Account, pinned.Addresses)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, &fault{wire.Failure{Message: fmt.Sprintf("the kernel does not show %v in the set of %s", missing, a.Place.Account), Mend: "see who else changes nftables; try again", Exit: wire.ExitFailed}}
	}
	return pinned.Addresses, nil
}

// revoke ends temporary destinations, with their connections.
func (w *Warden) revoke(ctx context.Context, req wire.RevokeRequest) (*wire.GrantsResult, error) {
	a, err := w.agent(req.Team, req.Agent)
	if err != nil {
		return nil, err
	}
	target := strings.ToLower(req.Target)
	b := &a.grants
	b.mu.Lock()
	err = b.loadLocked(&a.Agent)
	found := target == ""
	next := slices.DeleteFunc(slices.Clone(b.list), func(g wire.Grant) bool {
		gone := target == "" || g.Target == target
		found = found || gone
		return gone
	})
	switch {
	case err != nil:
	case !found:
		err = badInput(fmt.Sprintf("%.100q is not a temporary destination of %s", req.Target, a.Place.Name), "`bulkhead allow --list` shows them")
	case b.base == nil:
		err = b.saveLocked(&a.Agent, next)
	default:
		// The kernel first: what the gateway thinks cannot open anything.
		if err = a.setLocked(ctx, next, false); err == nil {
			err = a.tellGateway(ctx, next)
		}
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a.event(record.Egress, record.Allowed, req.Target, "temporary destinations were revoked", nil)
	w.log.Info("temporary destinations revoked", "team", a.Place.Team, "agent", a.Place.Name, "target", req.Target)
	return w.grantsOf(wire.AgentRequest{Team: a.Place.Team})
}

func (w *Warden) grantsOf(req wire.AgentRequest) (*wire.GrantsResult, error) {
	t, err := w.team(req.Team)
	if err != nil {
		return nil, err
	}
	for _, n := range req.Agents {
		if _, err := w.agent(t.name, n); err != nil {
			return nil, err
		}
	}
	res := &wire.GrantsResult{SchemaVersion: 1, Team: t.name, Agents: []wire.AgentGrants{}}
	for _, one := range w.openGrants(t.name) {
		if len(req.Agents) == 0 || slices.Contains(req.Agents, one.Agent) {
			res.Agents = append(res.Agents, one)
		}
	}
	return res, nil
}

// openGrants are a team's, by agent; agents without any are left out.
func (w *Warden) openGrants(teamName string) []wire.AgentGrants {
	w.mu.Lock()
	t := w.teams[teamName]
	var agents []*agentRun
	if t != nil {
		agents = t.sorted()
	}
	w.mu.Unlock()
	var out []wire.AgentGrants
	for _, a := range agents {
		if open := a.grants.open(time.Now()); len(open) > 0 {
			out = append(out, wire.AgentGrants{Agent: a.Place.Name, Grants: open})
		}
	}
	return out
}

// grantSpent writes down that a grant for one connection was used. It is
// called by the pin server, whose own memory refuses the next one already.
func (w *Warden) grantSpent(account string, g wire.Grant) {
	for _, a := range w.everyAgent() {
		if a.Place.Account != account {
			continue
		}
		b := &a.grants
		b.mu.Lock()
		next := slices.Clone(b.list)
		for i := range next {
			if next[i].Target == g.Target && next[i].At.Equal(g.At) {
				next[i].Spent = true
			}
		}
		err := a.setLocked(w.ctx, next, false)
		b.mu.Unlock()
		if err != nil {
			w.log.Error("a used temporary destination", "agent", a.Place.Name, "target", g.Target, "error", err)
		}
	}
}

func (w *Warden) everyAgent() []*agentRun {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*agentRun
	for _, t := range w.teams {
		out = append(out, t.sorted()...)
	}
	return out
}

// watchGrants takes away what is over. Decisions look at the time themselves,
// and the kernel's elements carry their own end: this ends connections, and
// clears up.
func (w *Warden) watchGrants() {
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			pause(w.ctx, grantTick)
			for _, a := range w.everyAgent() {
				a.endGrants(w.ctx, time.Now())
			}
		}
	})
}

func (a *agentRun) endGrants(ctx context.Context, now time.Time) {
	b := &a.grants
	b.mu.Lock()
	defer b.mu.Unlock()
	next := slices.DeleteFunc(slices.Clone(b.list), func(g wire.Grant) bool { return !now.Before(g.Until) })
	if len(next) == len(b.list) || b.base == nil {
		return
	}
	if err := a.setLocked(ctx, next, true); err != nil {
		a.w.log.Warn("clearing temporary destinations that are over", "agent", a.Place.Name, "error", err)
	}
	a.event(record.Egress, record.Allowed, "", "temporary destinations are over", nil)
	a.w.log.Info("temporary destinations are over", "team", a.Place.Team, "agent", a.Place.Name, "left", len(next))
}
