package warden

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/dial"
	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/topic"
)

// asTarget describes the agent for attacks, its processes by the cgroups that
// root owns. It can be attacked from when its runtime runs.
func (a *agentRun) asTarget(ctx context.Context) (one evidence.Agent, running bool) {
	one = evidence.Agent{
		Name: a.Place.Name, Place: a.Place, IDs: a.IDs,
		Proxy: dial.StaticFor(a.Want).Proxy, Dialer: insideDialer + "/dialer.sock",
	}
	if a.Messages {
		one.Adapter = insideAdapter + "/adapter.sock"
	}
	if a.relayed(runtimeName) {
		one.Taken = []evidence.Taken{{
			Attack: "process.child", Position: evidence.FromAccount,
			Why: "ociRuntime: runsc drives its guests by ptrace, so the account cell of this agent leaves it to the kernel's other checks",
		}}
		// What gVisor's own kernel answers by itself: nothing of it reaches this
		// host's (https://gvisor.dev/docs/architecture_guide/intro/).
		for attack, what := range map[string]string{
			"device.foreign": "shows a /dev/fuse of its own", "device.fuse": "has a FUSE of its own",
			"privilege.nice": "keeps nice values of its own, which no scheduler of this host sees", "kernel.x32": "has system calls of its own, and none of x32",
			"net.ping_socket":             "has sockets for echoes of its own, which reach its own loopback",
			"privilege.file_capabilities": "keeps extended attributes, or does not, by itself",
		} {
			one.Taken = append(one.Taken, evidence.Taken{Attack: attack, Position: evidence.FromRuntime, Why: "ociRuntime: runsc: gVisor's kernel " + what})
		}
	}
	one.Guest = a.Want.Guest
	first := runtimeName
	if one.Guest {
		first = gatewayName
		if len(a.Want.Egress) == 0 {
			one.Dialer = ""
		}
	}
	for _, c := range a.containers(ctx) {
		if c.Running {
			one.PIDs = append(one.PIDs, c.PID)
			running = running || c.Name == first && a.fence.Load() == nil // nothing of a fenced one can be attacked from
		}
	}
	a.aim(&one)
	one.Upstream = a.w.upstreamOf(a.Place, a.Want.Upstream)
	for _, d := range a.Want.Egress {
		if d.Host == "" || strings.HasPrefix(d.Host, "*.") {
			continue
		}
		to := fmt.Sprintf("%s:%d", d.Host, d.Port)
		one.Listed = cmp.Or(one.Listed, to)
		if d.SNI != team.SNIAny && d.Port == 443 {
			one.Named = cmp.Or(one.Named, to)
		}
	}
	return one, running
}

// aim says what of the agent's there is to aim at beside its processes.
func (a *agentRun) aim(one *evidence.Agent) {
	one.Code, one.TokenFile = a.CodeImage() != "", insideToken
	for _, name := range a.Services {
		socket := insideService + name + "/" + name + ".sock"
		switch name {
		case layout.AuditName:
			one.Audit = socket
		case layout.FrontName:
			one.Front = socket
		case layout.TopicsName:
			one.Topics = socket
		}
	}
	if t, err := a.w.team(a.Place.Team); err == nil {
		if t.manifest.Front != nil {
			one.Listens = t.manifest.Front.Listen.String()
		}
		for _, name := range slices.Sorted(maps.Keys(t.manifest.Topics)) {
			if !t.manifest.Topics.May(a.Place.Name, topic.Publish, name) {
				one.Unpublished = append(one.Unpublished, topic.Prefix+name)
			}
			if !t.manifest.Topics.May(a.Place.Name, topic.Read, name) {
				one.Unread = append(one.Unread, topic.Prefix+name)
			}
		}
		one.Unpublished, one.Unread = one.Unpublished[:min(len(one.Unpublished), maxTopics)], one.Unread[:min(len(one.Unread), maxTopics)]
	}
	one.Tokens, one.Shown = a.tokenSums()
	one.Expected = a.expectedPlaces()
	// See runtimeSpec.
	one.ReadOnly = []string{insideGateway, programsDir, "/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group"}
	if len(a.Want.CAFiles) > 0 {
		one.ReadOnly = append(one.ReadOnly, insideCA)
	}
	for _, m := range a.Want.Mounts {
		one.ReadOnly, one.Knowledge = append(one.ReadOnly, m.Target), append(one.Knowledge, m.Host)
	}
	if one.Tools = a.Want.Tools.Allowed(); len(one.Tools) > 0 {
		one.Rate = a.Want.Tools.WithDefaults().RatePerMinute
	}
	for _, allowed := range one.Tools {
		one.Fetches = one.Fetches || allowed == string(toolname.Network) || allowed == "net_http_get"
	}
	for _, d := range a.Want.Egress {
		_, fixed := a.Want.Hosts[d.Host]
		if d.Host != "" && d.Host != dial.LoopbackName && !strings.HasPrefix(d.Host, "*.") && !fixed {
			one.Resolved = append(one.Resolved, fmt.Sprintf("%s:%d", d.Host, d.Port))
		}
	}
	one.Resolved = one.Resolved[:min(len(one.Resolved), maxResolved)]
	if one.Siblings = a.everything(); len(one.Siblings) == 0 {
		one.Siblings = one.PIDs
	}
}

// tokenSums are the sums of all tokens of the agent, and of those that its runtime
// is shown.
func (a *agentRun) tokenSums() (all, shown []string) {
	var run runState // from root's file: who starts the agent holds its lock for long
	if there, err := readJSON(runStatePath(a.Place), &run); err != nil || !there || run.Token == "" {
		return nil, nil
	}
	shown = []string{evidence.TokenSum(tooltoken.Of(run.Token))}
	all = append(slices.Clone(shown), evidence.TokenSum(run.Token))
	add := func(token string) {
		if token != "" {
			all = append(all, evidence.TokenSum(token))
		}
	}
	if t, err := a.w.team(a.Place.Team); err == nil && t.adapter != nil && a.Messages {
		add(t.adapter.token(a.Place.Name))
	}
	for _, name := range a.Services {
		if s := a.w.service(name); s != nil {
			add(s.token(a.Place.Team, a.Place.Name))
		}
	}
	return all, shown
}

// everything lists the host's numbers of what runs for the agent, the launcher
// included. What cannot be read is left out: PIDs are there as well.
func (a *agentRun) everything() []int {
	top := filepath.Join(a.Place.Team, a.Place.Name)
	group, err := a.w.cgroups.Group(top)
	if err != nil {
		return nil
	}
	names, err := group.Children()
	if err != nil {
		return nil
	}
	var out []int
	for _, name := range names {
		if g, err := a.w.cgroups.Group(filepath.Join(top, name)); err == nil {
			if pids, err := g.Procs(); err == nil {
				out = append(out, pids[:min(len(pids), maxSiblings)]...)
			}
		}
	}
	return out
}

// maxTopics bounds how many public topics of its team an agent tries.
const maxTopics = 16

// maxSiblings bounds how many processes of one container are aimed at.
const maxSiblings = 8

// maxResolved bounds for how many of an agent's names verify asks DNS.
const maxResolved = 4
