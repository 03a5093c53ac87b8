package warden

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// fencePatience bounds how long the processes of one agent may take to stop.
const fencePatience = 5 * time.Second

// fenceFile is what makes a fence outlive the warden and the host's restart. It
// lies in the agent's state folder and goes with `down --purge`.
type fenceFile struct {
	Version int `json:"version"`
	wire.Fence
}

func (a *agentRun) fencePath() string { return filepath.Join(a.Place.State, "fence.json") }

// loadFence reads whether the agent is fenced. What cannot be read fences.
func (a *agentRun) loadFence() {
	var f fenceFile
	switch ok, err := readJSON(a.fencePath(), &f); {
	case err != nil:
		a.fence.Store(&wire.Fence{By: "the warden", Why: err.Error()})
	case ok:
		a.fence.Store(&f.Fence)
	default:
		a.fence.Store(nil)
	}
}

// unfenced gives an agent that may be let do something.
func (w *Warden) unfenced(team, name string) (*agentRun, error) {
	a, err := w.agent(team, name)
	if err != nil {
		return nil, err
	}
	return a, a.fencedFault()
}

// fencedFault refuses what would let a fenced agent do something.
func (a *agentRun) fencedFault() error {
	f := a.fence.Load()
	if f == nil {
		return nil
	}
	return &fault{wire.Failure{
		Message: a.Place.Name + " is fenced since " + f.Since.Format(time.RFC3339) + " by " + f.By + why(f.Why),
		Mend:    "bulkhead release " + a.Place.Name, Exit: wire.ExitRefused,
	}}
}

func why(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// fenceAgents cuts agents off and freezes them. It does not wait for w.change: an
// up that hangs must not keep an operator from pulling the plug.
func (w *Warden) fenceAgents(ctx context.Context, req wire.FenceRequest, by string) (*wire.FenceResult, error) {
	var one []*guest
	names := req.Agents
	if len(names) > 0 {
		req.Agents, one = w.splitGuests(req.Team, names)
	}
	var agents []*agentRun
	if len(req.Agents) > 0 || len(one) == 0 {
		var err error
		if agents, err = w.toFence(req); err != nil {
			return nil, err
		}
	}
	// Written before it is done: a warden that dies in between finds it.
	var errs []error
	f := fenceFile{Version: stateVersion, Fence: wire.Fence{Since: time.Now().UTC().Truncate(time.Second), By: by, Why: req.Why}}
	for _, a := range agents {
		if a.fence.Load() != nil {
			continue
		}
		errs = append(errs, writeJSON(a.fencePath(), f))
		a.fence.Store(&f.Fence) // whatever the disk said
	}
	errs = append(errs, w.applyTable(ctx))
	if len(names) == 0 {
		for _, name := range w.guestTeamsOf(req.Team) {
			errs = append(errs, w.fenceGuests(ctx, name, f))
		}
	}
	res := &wire.FenceResult{SchemaVersion: 1, Agents: make([]wire.FencedAgent, len(agents))}
	var all sync.WaitGroup
	for i, a := range agents {
		all.Go(func() { res.Agents[i] = a.freeze(ctx) })
	}
	ended, failed := make([]wire.FencedAgent, len(one)), make([]error, len(one))
	for i, g := range one {
		all.Go(func() { ended[i], failed[i] = w.fenceGuest(ctx, g, f) })
	}
	all.Wait()
	for i, a := range agents {
		one := &res.Agents[i]
		s, err := w.table.Inspect(a.Place.Account)
		one.CutOff = err == nil && s.InForce
		if one.Problem == "" && !one.CutOff {
			one.Problem = fmt.Sprintf("the rules: %v %v", s.Difference, err)
		}
		a.event(record.Life, record.Denied, "", "fenced by "+by+why(req.Why), nil)
		w.log.Warn("fenced", "team", a.Place.Team, "agent", a.Place.Name, "by", by, "why", req.Why, "cut_off", one.CutOff, "frozen", one.Frozen)
	}
	for i, g := range one {
		g.event(record.Life, record.Denied, "", "fenced by "+by+why(req.Why), nil)
		w.log.Warn("fenced", "team", g.Place.Team, "agent", g.Place.Name, "by", by, "why", req.Why, "cut_off", ended[i].CutOff, "frozen", ended[i].Frozen)
	}
	res.Agents = append(res.Agents, ended...)
	return res, errors.Join(append(errs, failed...)...)
}

// toFence is every agent that a request means.
func (w *Warden) toFence(req wire.FenceRequest) ([]*agentRun, error) {
	if req.Team == "" && len(req.Agents) == 0 {
		w.mu.Lock()
		teams := slices.Collect(maps.Values(w.teams))
		w.mu.Unlock()
		var out []*agentRun
		for _, t := range teams {
			w.mu.Lock()
			out = append(out, t.sorted()...)
			w.mu.Unlock()
		}
		if len(out) == 0 {
			return nil, badInput("no agent runs on this host", "nothing is to be fenced")
		}
		return out, nil
	}
	_, out, err := w.selected(wire.AgentRequest{Team: req.Team, Agents: req.Agents})
	return out, err
}

// freeze stops every process of a fenced agent and keeps its owner from
// starting others.
func (a *agentRun) freeze(ctx context.Context) (res wire.FencedAgent) {
	res.Team, res.Agent = a.Place.Team, a.Place.Name
	fail := func(err error) {
		if err != nil && res.Problem == "" {
			res.Problem = err.Error()
		}
	}
	fail(a.freezeGroups()) // at once
	a.release()            // its owner may be about to start something
	// The launcher goes on. What it keeps ready, or is about to, holds nothing of
	// the agent, and would be something that runs.
	a.procs.Lock()
	l := a.launcher
	a.procs.Unlock()
	if l != nil {
		bound, cancel := context.WithTimeout(ctx, fencePatience)
		_ = l.Rest(bound) // what is frozen is read below
		cancel()
	}
	for end := time.Now().Add(fencePatience); ; pause(ctx, 10*time.Millisecond) {
		fail(a.freezeGroups())
		var err error
		res.Frozen, err = a.frozen()
		fail(err)
		if res.Frozen || err != nil || ctx.Err() != nil || time.Now().After(end) {
			break
		}
	}
	if ctx.Err() != nil {
		fail(ctx.Err())
	}
	return res
}

// freezeGroups freezes what runs for the agent. Its launcher, which is the
// warden's and runs nothing of the agent's, goes on: it is who ends containers.
func (a *agentRun) freezeGroups() error {
	return a.eachGroup(func(name string) error {
		g, err := a.w.cgroups.Group(name)
		if err != nil {
			return err
		}
		return g.Freeze(fencePatience)
	})
}

func (a *agentRun) thawGroups() error {
	return a.eachGroup(func(name string) error {
		g, err := a.w.cgroups.Group(name)
		if err != nil {
			return err
		}
		return g.Thaw()
	})
}

// frozen reads back whether nothing of the agent can run.
func (a *agentRun) frozen() (bool, error) {
	all := true
	err := a.eachGroup(func(name string) error {
		g, err := a.w.cgroups.Group(name)
		if err != nil {
			return err
		}
		busy, err := g.Busy()
		if err != nil || !busy {
			return err
		}
		frozen, err := g.Frozen()
		all = all && frozen
		return err
	})
	return all && err == nil, err
}

func (a *agentRun) eachGroup(do func(path string) error) error {
	top := filepath.Join(a.Place.Team, a.Place.Name)
	g, err := a.w.cgroups.Group(top)
	if err != nil {
		return err
	}
	names, err := g.Children()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		if n != launcherGroup {
			errs = append(errs, do(filepath.Join(top, n)))
		}
	}
	return errors.Join(errs...)
}

// unfence ends the fence of agents, whose owners adopt what was frozen.
func (w *Warden) unfence(ctx context.Context, req wire.AgentRequest) (*wire.StatusResult, error) {
	w.change.Lock()
	defer w.change.Unlock()
	guests := len(req.Agents) == 0 || slices.Contains(req.Agents, wire.Guests)
	alone := len(req.Agents) > 0
	req.Agents = slices.DeleteFunc(slices.Clone(req.Agents), func(n string) bool { return n == wire.Guests })
	var single []*guest
	req.Agents, single = w.splitGuests(req.Team, req.Agents)
	alone = alone && len(req.Agents) == 0
	t, agents, err := w.selected(req)
	if err != nil {
		return nil, err
	}
	if alone {
		agents = nil // none named means all
	}
	freed := false
	if guests {
		if freed, err = w.releaseGuests(t.name); err != nil {
			return nil, err
		}
	}
	agents = slices.DeleteFunc(agents, func(a *agentRun) bool { return a.fence.Load() == nil })
	single = slices.DeleteFunc(single, func(g *guest) bool { return g.fence.Load() == nil })
	for _, g := range single {
		if err := w.releaseGuest(g); err != nil {
			return nil, err
		}
		freed = true
	}
	if len(agents) == 0 && !freed {
		return nil, badInput("none of these agents is fenced", "`bulkhead status` shows which are")
	}
	for _, a := range agents {
		if err := tree.Remove(a.fencePath()); err != nil {
			return nil, err
		}
		a.fence.Store(nil)
	}
	if err := w.applyTable(ctx); err != nil {
		return nil, err
	}
	var failed []string
	for _, a := range agents {
		a.event(record.Life, record.Allowed, "", "released from the fence", nil)
		w.log.Warn("released from the fence", "team", a.Place.Team, "agent", a.Place.Name)
		if err := a.thawGroups(); err != nil {
			failed = append(failed, fmt.Sprintf("agent %s: %v", a.Place.Name, err))
			continue
		}
		if t.state.Agents[a.Place.Name].Stopped {
			continue
		}
		if err := w.startOne(ctx, a, false); err != nil {
			failed = append(failed, fmt.Sprintf("agent %s: %v", a.Place.Name, err))
		}
	}
	st := w.status(ctx, t.name)
	if len(failed) > 0 {
		return &st, failures(failed)
	}
	return &st, nil
}

// operator names who asks, for records.
func operator(uid uint32) string { return "uid " + strconv.FormatUint(uint64(uid), 10) }

// fencedStatus says of a fenced agent what the kernel says.
func (a *agentRun) fencedStatus(s *wire.AgentStatus) {
	s.State, s.Why = "fenced", "since "+s.Fence.Since.Format(time.RFC3339)+" by "+s.Fence.By+why(s.Fence.Why)
	if frozen, err := a.frozen(); err != nil || !frozen {
		s.Why += "; but it is not frozen"
		if err != nil {
			s.Why += ": " + err.Error()
		}
	}
	for _, l := range s.Layers {
		if l.Layer == "egress" && !l.InForce {
			s.Why += "; but its rules are not in force: " + l.Witness
		}
	}
}
