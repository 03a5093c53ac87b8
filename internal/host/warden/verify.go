package warden

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/evidence"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/host/account"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/tool/toolname"
	"bulkhead/internal/topic"
	"bulkhead/internal/wire"
)

// maxAnswer bounds what a probe may say: the rest is cut, and then it is lost.
const maxAnswer = attempt.MaxBytes + 1

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
	one.Expected = a.expectedPlaces()
	// See runtimeSpec.
	one.ReadOnly = []string{insideGateway, programsDir, "/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group"}
	if len(a.Want.CAFiles) > 0 {
		one.ReadOnly = append(one.ReadOnly, insideCA)
	}
	for _, m := range a.Want.Mounts {
		one.ReadOnly, one.Knowledge = append(one.ReadOnly, m.Target), append(one.Knowledge, m.Host)
	}
	for _, allowed := range a.Want.Tools.Allowed() {
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

// prober starts probes in the real places of running agents.
type prober struct {
	w    *Warden
	team string
}

var _ evidence.Host = prober{}

// Probe implements evidence.Host.
func (p prober) Probe(ctx context.Context, agent string, from evidence.Position, request []byte) ([]byte, error) {
	var a *agentRun
	if from != evidence.FromServer {
		var err error
		if a, err = p.w.anyAgent(p.team, agent); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The timer starts anew with everything that the probe says.
	timer := time.AfterFunc(silence, cancel)
	defer timer.Stop()
	said := func() { timer.Reset(silence) }
	switch from {
	case evidence.FromRuntime:
		return a.probeThroughShim(ctx, runtimeName, request, said)
	case evidence.FromGateway:
		return a.probeThroughShim(ctx, gatewayName, request, said)
	case evidence.FromAccount:
		return a.probeIn(ctx, engine.Spec{
			Version: engine.SpecVersion, Team: a.Place.Team, Agent: a.Place.Name, Name: "probe-", Role: engine.RoleAccount,
			User: engine.User{ID: a.IDs.Account}, Command: []string{filepath.Join(a.programs(), probeProgram)}, Env: []string{}, Dir: "/",
			Limits: engine.Limits{}.WithDefaults(),
		}, request, said)
	case evidence.FromCode:
		return a.probeIn(ctx, a.codeProbe(), request, said)
	case evidence.FromServer:
		return p.w.probeServer(ctx, p.team, agent, request, said)
	}
	return nil, fmt.Errorf("no position %q", from)
}

// silence is how long a probe may say nothing. It writes each answer as it has
// it, and bounds each attempt by 20 seconds: one that is quiet for longer was
// stopped by what it attacks.
const silence = 30 * time.Second

func (a *agentRun) probeThroughShim(ctx context.Context, container string, request []byte, said func()) ([]byte, error) {
	c, err := dialWire(ctx, a.Place.ShimSocket(container), wire.ShimProtocol, wire.ShimVersion)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Unix().SetDeadline(time.Now()) })
	defer stop()
	inside, outside, err := a.stdioFor(container, false)
	if err != nil {
		return nil, err
	}
	defer closeFiles(outside)
	err = c.Send(1, wire.VerbExec, wire.ExecRequest{Argv: []string{programsDir + "/" + probeProgram}, Dir: "/"}, inside...)
	closeFiles(inside)
	if err != nil {
		return nil, err
	}
	m, files, err := c.Recv()
	files = append(files, outside...)
	defer closeFiles(files)
	if err != nil {
		return nil, err
	}
	var st wire.ExecStarted
	if err := decode(m, &st); err != nil {
		return nil, err
	}
	if len(files) != 3 {
		return nil, fmt.Errorf("the shim passed %d descriptors, want 3", len(files))
	}
	answer, err := converse(ctx, files[0], files[1], files[2], request, said)
	if err != nil {
		return answer, err
	}
	_, more, err := c.Recv() // exited
	closeFiles(more)
	return answer, err
}

// codeProbe is a cell of code's with the probe in the place of an interpreter.
func (a *agentRun) codeProbe() engine.Spec {
	const programs = "/tmp" + programsDir // in memory, since the image need not have a place for it
	s := a.weaker(codeSpec(a.w.host, &a.Agent))
	s.Name = launcher.CodePrefix + "probe-"
	s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: a.programs(), Target: programs, Exec: true})
	s.Command = []string{programs + "/" + probeProgram}
	// The probe is not what the limits are for: exhaustion is tried in decoys.
	s.Limits.MemoryBytes, s.Limits.PIDs = max(s.Limits.MemoryBytes, probeMemory), max(s.Limits.PIDs, probePIDs)
	return s
}

// What a probe needs.
const (
	probeMemory = 128 << 20
	probePIDs   = 64
)

// probeIn has the launcher run a probe in a container of its own, whose name is
// finished here.
func (a *agentRun) probeIn(ctx context.Context, spec engine.Spec, request []byte, said func()) ([]byte, error) {
	client, err := launcher.Connect(ctx, a.Place.LauncherSocket())
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	inside, outside, err := stdioPipes()
	if err != nil {
		return nil, err
	}
	defer closeFiles(outside)
	spec.Name += strings.ToLower(rand.Text()[:10])
	spec.Cgroup = cgroupOf(&a.Agent, spec.Name)
	c, err := client.Launch(ctx, launcher.LaunchRequest{Spec: spec, Stdio: true}, inside...)
	closeFiles(inside)
	if err != nil {
		return nil, err
	}
	if c.PIDFD != nil {
		defer func() { _ = c.PIDFD.Close() }()
	}
	stop := context.AfterFunc(ctx, func() { _, _ = client.Kill(context.WithoutCancel(ctx), spec.Name) })
	defer stop()
	answer, err := converse(ctx, outside[0], outside[1], outside[2], request, said)
	if err != nil {
		return answer, err
	}
	_, err = client.Wait(ctx, spec.Name)
	return answer, err
}

// converse writes the request, closes stdin and reads the answer to its end.
// What the probe writes to stderr explains an empty answer.
//
// The probe runs among the agent's processes, which may stop it or hold its
// pipes: nothing here waits longer than ctx. said is called for each part of
// the answer.
func converse(ctx context.Context, stdin, stdout, stderr *os.File, request []byte, said func()) ([]byte, error) {
	for _, f := range []**os.File{&stdin, &stdout, &stderr} {
		p, err := pollable(*f)
		if err != nil {
			return nil, err
		}
		defer func() { _ = p.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = p.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		*f = p
	}
	var errs bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(&errs, io.LimitReader(stderr, 4096)) })
	_, werr := stdin.Write(request)
	werr = errors.Join(werr, stdin.Close())
	answer, err := io.ReadAll(io.LimitReader(heard{stdout, said}, maxAnswer))
	wg.Wait()
	if err = errors.Join(werr, err); err == nil && len(answer) == 0 {
		err = fmt.Errorf("the probe said nothing: %s", strings.TrimSpace(errs.String()))
	}
	return answer, err // what was said before it failed counts
}

// heard tells of every read that brought something.
type heard struct {
	io.Reader
	said func()
}

func (h heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.said()
	}
	return n, err
}

// pollable gives a descriptor of its own for the same pipe, whose reads and
// writes can have a deadline.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("warden: pipe of a probe: %w", err)
	}
	_ = f.Close() // or the probe would not see the end of its input
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("warden: pipe of a probe: %w", err)
	}
	return os.NewFile(uintptr(fd), "pipe"), nil // #nosec G115 -- a descriptor
}
