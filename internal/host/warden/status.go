package warden

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/host"
	"bulkhead/internal/host/doctor"
	"bulkhead/internal/host/ledger"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

func (w *Warden) statusOf(ctx context.Context, req wire.TeamRequest) (*wire.StatusResult, error) {
	if req.Team != "" {
		w.mu.Lock()
		_, lost := w.unreadable[req.Team]
		w.mu.Unlock()
		if _, err := w.team(req.Team); err != nil && !lost {
			return nil, err
		}
	}
	st := w.status(ctx, req.Team)
	return &st, nil
}

// status reads everything from the kernel now; an empty name means every team.
func (w *Warden) status(ctx context.Context, name string) wire.StatusResult {
	w.mu.Lock()
	installed := ""
	if w.sys != nil {
		installed = w.sys.programs
	}
	var teams []*teamRun
	for _, n := range slices.Sorted(maps.Keys(w.teams)) {
		if name == "" || n == name {
			teams = append(teams, w.teams[n])
		}
	}
	lost := maps.Clone(w.unreadable)
	w.mu.Unlock()
	l := w.look()
	res := wire.StatusResult{SchemaVersion: 1, Build: w.cfg.Build, Programs: installed, Teams: []wire.TeamStatus{}}
	for _, t := range teams {
		ts := wire.TeamStatus{Team: t.name}
		w.mu.Lock()
		agents, adapter := t.sorted(), t.adapter
		accepted := t.state.Accepted
		w.mu.Unlock()
		ts.Agents = make([]wire.AgentStatus, len(agents))
		slots := make(chan struct{}, startsPerCore*runtime.NumCPU())
		var all sync.WaitGroup
		for i, a := range agents {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				ts.Agents[i] = a.status(ctx, accepted, l)
			})
		}
		all.Wait()
		ts.Guests = w.guestStatus(t.name)
		if adapter != nil {
			ts.Agents = append(ts.Agents, adapter.status(ctx))
		}
		res.Teams = append(res.Teams, ts)
	}
	if name == "" {
		res.Services = w.serviceStatus(ctx)
	}
	for _, n := range slices.Sorted(maps.Keys(lost)) {
		if name == "" || n == name {
			res.Teams = append(res.Teams, w.lostTeam(n, lost[n]))
		}
	}
	return res
}

// lostTeam is a team whose state cannot be read: its agents are known from the
// ledger, and may run.
func (w *Warden) lostTeam(name string, why error) wire.TeamStatus {
	ts := wire.TeamStatus{Team: name, Agents: []wire.AgentStatus{}}
	seen := map[string]bool{}
	for _, th := range w.ledger.Things(func(x ledger.Thing) bool { return x.Team == name && x.Agent != "" }) {
		if seen[th.Agent] {
			continue
		}
		seen[th.Agent] = true
		ts.Agents = append(ts.Agents, wire.AgentStatus{
			Agent: th.Agent, Account: w.host.Agent(name, th.Agent).Account, State: "degraded",
			Why:        fmt.Sprintf("what was asked for is not known: %v; apply the team's manifest again: bulkhead up -f MANIFEST", why),
			Containers: []wire.ContainerStatus{}, Layers: []wire.LayerStatus{},
		})
	}
	return ts
}

func (a *agentRun) status(ctx context.Context, accepted []string, now look) wire.AgentStatus {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a.mu.Lock()
	want, problem, restarts, with := a.want, a.problem, len(a.restarts), a.with
	a.mu.Unlock()
	s := wire.AgentStatus{
		Agent: a.Place.Name, Account: a.Place.Account, Range: a.IDs.String(), Programs: with, Restarts: restarts, Why: problem,
		Containers: []wire.ContainerStatus{}, Layers: []wire.LayerStatus{},
	}
	s.Grants = a.grants.open(time.Now())
	s.Fence = a.fence.Load()
	s.Disks = a.diskStatus()
	s.Notices, s.Outbox, s.Gaps, s.Asking = a.heard.told()
	all := true
	some := false
	now.containers = a.containers(ctx)
	for _, c := range now.containers {
		s.Containers = append(s.Containers, c)
		finished := c.Name == runtimeName && a.Want.Mode == team.ModeTask && c.Exit != nil
		if !c.Running && !finished {
			all = false
			if s.Why == "" {
				s.Why = c.Name + " does not run"
			}
		}
		if c.Running && c.Name != dialerName {
			some = true
		}
	}
	s.Raised = a.raised(s.Containers)
	inForce := true
	for _, one := range a.w.layersOf(&a.Agent, now) {
		l := wire.LayerStatus{Layer: string(one.Name())}
		if i, err := one.Inspect(ctx, &a.Agent); err != nil {
			l.Witness = err.Error()
		} else {
			l.InForce, l.Witness = i.InForce, i.Witness
		}
		holds := l.InForce
		if slices.Contains(accepted, l.Layer) {
			// Whole it is not, whatever else of it holds; and it goes on being
			// said for as long as the team runs.
			l.InForce = false
			l.Witness = lacking(ctx, doctor.Here(), doctor.Features(), l.Layer) + ", accepted by the operator; the rest: " + l.Witness
		}
		s.Layers = append(s.Layers, l)
		if !holds {
			inForce = false
			if s.Why == "" {
				s.Why = "layer " + l.Layer + " is not in force: " + l.Witness
			}
		}
	}
	s.State = stateWord(want, problem, all, inForce, some)
	if s.Fence != nil {
		a.fencedStatus(&s)
		return s
	}
	if s.State == "running" && a.Want.Mode == team.ModeTask && !slices.ContainsFunc(s.Containers, func(c wire.ContainerStatus) bool {
		return c.Name == runtimeName && c.Running
	}) {
		s.State = "exited"
	}
	return s
}

func stateWord(want bool, problem string, all, inForce, some bool) string {
	switch {
	case !want && !some:
		return "stopped"
	case all && inForce:
		return "running"
	case strings.Contains(problem, "given up"):
		return "failed"
	case want && !some:
		return "starting"
	}
	return "degraded"
}

// containers asks the launcher, their parent, and the kernel.
func (a *agentRun) containers(ctx context.Context) []wire.ContainerStatus {
	out := []wire.ContainerStatus{
		{Name: runtimeName, HostID: a.IDs.Runtime()}, {Name: gatewayName, HostID: a.IDs.Gateway()}, {Name: dialerName, HostID: a.IDs.Dialer},
	}
	if p, ok := a.peekDialer(); ok {
		out[2].Running, out[2].PID = true, p
		out[2].MemoryBytes = a.w.memoryOf(cgroupOf(&a.Agent, dialerName))
	}
	client, err := launcher.Connect(ctx, a.Place.LauncherSocket())
	if err != nil {
		return out
	}
	defer func() { _ = client.Close() }()
	list, err := client.List(ctx)
	if err != nil {
		return out
	}
	for _, c := range list {
		if c.PIDFD != nil {
			_ = c.PIDFD.Close()
		}
		for i := range out[:2] {
			if out[i].Name != c.Name {
				continue
			}
			out[i].Since = c.Since.UTC().Format(time.RFC3339)
			if c.State != launcher.StateRunning {
				if c.Exit != nil {
					out[i].Exit = &c.Exit.Code
				}
				continue
			}
			out[i].Running, out[i].PID = true, c.HostPID
			out[i].MemoryBytes = a.w.memoryOf(cgroupOf(&a.Agent, c.Name))
		}
	}
	return append(out, a.codeContainers(list)...)
}

// peekDialer says whether the dialer runs without waiting for whoever changes
// the agent at this moment.
func (a *agentRun) peekDialer() (int, bool) {
	p := a.w.adopt(a.Place.Run+"/dialer.json", a.IDs.Dialer, cgroupOf(&a.Agent, dialerName))
	if p == nil {
		return 0, false
	}
	defer func() { _ = p.pidfd.Close() }()
	return p.identity.PID, p.alive()
}

// inspectPod reads what confines the first process of each container that
// runs.
func inspectPod(ids layout.IDs, containers []wire.ContainerStatus, sandboxed bool, labels map[engine.Role]string) host.Inspection {
	var seen []string
	for _, one := range containers {
		if !one.Running || one.Name == dialerName {
			continue
		}
		c, err := confinementOf(one.PID)
		if err == nil {
			err = c.check(ids, one.Name == runtimeName && sandboxed)
		}
		if err == nil {
			err = checkLabel(one.PID, labels[engine.Role(one.Name)])
		}
		if err != nil {
			return host.Inspection{Witness: fmt.Sprintf("%s, process %d: %v", one.Name, one.PID, err)}
		}
		seen = append(seen, strconv.Itoa(one.PID))
	}
	what := ": seccomp filter, no new privileges, no capabilities, own namespaces, ids of the range"
	if sandboxed {
		what = ": seccomp filter, no new privileges, own namespaces, ids of the range, no capabilities beyond the sandbox's own user namespace; " +
			"inside the runtime gVisor's kernel keeps seccomp and has no Landlock"
	}
	if len(labels) > 0 {
		what += ", AppArmor profile enforced"
	}
	if len(seen) == 0 {
		return host.Inspection{Witness: "no container runs"}
	}
	return host.Inspection{
		InForce: true,
		Witness: "/proc/" + strings.Join(seen, ",") + what,
	}
}

// hostNamespace is the host's own namespace of one kind.
func hostNamespace(kind string) (string, error) { return os.Readlink("/proc/self/ns/" + kind) }
