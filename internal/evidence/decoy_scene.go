package evidence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// scene is what surrounds a decoy inside the decoy host: an attacker "a" and a
// target "b" with files, sockets and a process; a network; rules; a dialer.
type scene struct {
	plan     decoyPlan
	host     layout.Host
	a, b     Agent
	world    World
	net      *decoyNetwork
	table    *nft.Table
	cgroups  *cgroup.Tree
	egress   *decoyEgress
	noEgress error // why there is no egress
	gateways *decoyGateways
	noGates  error // why there are no gateways
	target   *exec.Cmd
	hold     io.Closer // ends the target
	sockets  []net.Listener
	noDisk   error // why there are no disks

	mu    sync.Mutex
	count int // decoys so far, for their names; guarded by mu
}

// decoyRoot is the root file system of decoys, and decoyTmp its scratch.
const decoyRoot = "/decoy/rootfs"

// targetPID keeps the target's number apart from the few that a decoy in a PID
// namespace of its own can have.
const targetPID = 20000

// decoyLayout is where the decoys' files are.
var decoyLayout = layout.Host{State: "/decoy/state", Run: "/decoy/run", Etc: "/decoy/etc"}

// decoyAgents are the attacker and the target.
func decoyAgents(plan decoyPlan) [2]Agent {
	return [2]Agent{
		{Name: "a", Place: decoyLayout.Agent("decoy", "a"), IDs: layout.IDs{Account: plan.FirstID, Dialer: plan.FirstID + 1, Base: plan.FirstID + layout.RangeSize}},
		{Name: "b", Place: decoyLayout.Agent("decoy", "b"), IDs: layout.IDs{Account: plan.FirstID + 2, Dialer: plan.FirstID + 3, Base: plan.FirstID + 2*layout.RangeSize}},
	}
}

func newScene(ctx context.Context, plan decoyPlan) (*scene, error) {
	agents := decoyAgents(plan)
	s := &scene{plan: plan, host: decoyLayout, a: agents[0], b: agents[1]}
	s.a.Dialer, s.a.Listed = s.a.Place.DialerSocket(), "listed.example:443"
	s.a.Code, s.a.Fetches, s.a.Listens, s.a.ReadOnly = true, true, decoyFront, []string{insideGiven}
	s.a.Audit, s.a.Front = s.a.Place.ServiceSocket(layout.AuditName), s.a.Place.ServiceSocket(layout.FrontName)
	s.a.Resolved, s.a.Redirects = rebinding(), "listed.example:80"
	s.a.Foreign = []string{TokenSum(decoyToken)}
	s.a.Tools, s.a.Proxy = decoyTools.Allow, insideGate+"/"+gateSocket
	s.b.TokenFile, s.b.Knowledge = decoyTokenFile, []string{filepath.Join(decoyKnowledge, "b")}
	s.world = World{
		Unlisted: decoyUnlisted + ":443", Loopback: "127.0.0.1:7777", Resolvers: []string{decoyResolver + ":53"},
		Unlisted6: "[" + unlistedAddress6 + "]:443", Public: []string{decoyResolver}, LoopbackUDP: "127.0.0.1:7777", Own: decoyListed + ":9",
		Abstract: "@decoy", Table: nft.Name, Spare: plan.Spare, Changing: decoyChanging.Milliseconds(),
	}
	var err error
	if s.net, err = newDecoyNetwork(); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if s.world.Loopback6 = s.net.loopback6; s.world.Loopback6 == "" {
		s.world.Unlisted6 = ""
	}
	if s.table, err = nft.Open(); err != nil {
		return nil, err
	}
	if plan.CgroupRoot != "" {
		if s.cgroups, err = cgroup.Open(plan.CgroupRoot); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(s.makeRoot(), s.makeHostFiles(), s.makeWork(), s.makeKept(), s.makeTarget()); err != nil {
		return nil, err
	}
	if err := s.rules(ctx, true); err != nil {
		return nil, err
	}
	// Without a dialer only the controls that need one fail.
	s.egress, s.noEgress = newDecoyEgress(s)
	if slices.ContainsFunc(Attacks(), func(a Attack) bool { return a.byTools() && slices.Contains(plan.Attacks, a.ID) }) {
		s.gateways, s.noGates = newDecoyGateways(s) // which take a while to start
	}
	return s, nil
}

// close takes everything down and waits for it.
func (s *scene) close() {
	s.gateways.close()
	if s.egress != nil {
		s.egress.close()
	}
	_ = s.hold.Close()
	_ = s.target.Wait()
	for _, l := range s.sockets {
		_ = l.Close()
	}
	s.net.close()
	_ = s.table.Close()
}

// makeRoot makes the decoys' root file system. Root owns it, as it must; its
// etc is open to everybody, so that only its being read-only refuses.
func (s *scene) makeRoot() error {
	for _, dir := range []string{"", "etc", "tmp", "proc", "dev", "sys", "run", s.plan.Programs, s.a.Place.DialerDir(), insideGate} {
		p := filepath.Join(decoyRoot, dir)
		if err := os.MkdirAll(p, 0o755); err != nil { // #nosec G301 -- for every decoy
			return err
		}
	}
	return os.Chmod(filepath.Join(decoyRoot, "etc"), 0o1777) // #nosec G302 -- so that only read-only refuses
}

// makeHostFiles makes what only the host's root may touch, and a socket of a
// service that everybody who sees it may use.
func (s *scene) makeHostFiles() error {
	for _, p := range []string{
		"/etc/shadow", s.host.Ledger(), s.host.WardenLog(), s.host.Manifest("decoy"), s.a.Place.RuntimeImage(), s.a.Place.GatewayImage(),
	} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil { // #nosec G301 -- the files are closed
			return err
		}
		if _, err := os.Stat(p); err == nil {
			continue // a disk that is in use
		}
		if err := os.WriteFile(p, []byte("decoy\n"), 0o600); err != nil {
			return err
		}
	}
	// What somebody forgot there for everybody to read.
	if err := os.WriteFile("/etc/forgotten.env", []byte("TOKEN="+decoyToken+"\n"), 0o644); err != nil { // #nosec G306 -- so that only not being seen refuses
		return err
	}
	l, err := net.Listen("unix", "/run/docker.sock")
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, l)
	s.net.wait.Go(func() { accept(l, func() {}) })
	return os.Chmod("/run/docker.sock", 0o666) // #nosec G302 -- so that only not being seen refuses
}

// decoyToken looks like one.
var decoyToken = strings.Repeat("0123456789abcdef", 4)

// makeTarget gives b what the attacks are aimed at: all of it is reachable for
// exactly b's own id.
func (s *scene) makeTarget() error {
	id := int(s.b.IDs.Runtime())
	for _, path := range append(s.b.Sockets(), s.b.Place.AdapterSocket()) {
		if err := s.listen(path, id, 0o660); err != nil {
			return err
		}
	}
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(targetPID)), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) { // without CONFIG_CHECKPOINT_RESTORE: the next number
		return fmt.Errorf("number the target's process: %w", err)
	}
	s.target = exec.Command(filepath.Join(s.plan.Programs, "bulkhead-probe"), "child", decoyToken) // #nosec G204 -- ours
	s.target.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.b.IDs.Runtime(), Gid: s.b.IDs.Runtime(), NoSetGroups: false}}
	s.target.Dir = "/"
	hold, err := s.target.StdinPipe()
	if err != nil {
		return err
	}
	s.hold = hold
	if err := s.target.Start(); err != nil {
		return fmt.Errorf("start the target: %w", err)
	}
	s.b.PIDs = []int{s.target.Process.Pid}
	s.a.Siblings = s.b.PIDs // what code of the attacker's is aimed at
	return nil
}

// rules loads the table with or without rules for the attacker.
func (s *scene) rules(ctx context.Context, on bool) error {
	want := nft.Want{Agents: []nft.Binding{{Account: s.b.Place.Account, IDs: s.b.IDs}}}
	if on {
		want.Agents = append(want.Agents, nft.Binding{Account: s.a.Place.Account, IDs: s.a.IDs})
	}
	if err := s.table.Apply(ctx, want); err != nil {
		return fmt.Errorf("load rules: %w", err)
	}
	return nil
}

// spec describes one decoy of the attacker.
func (s *scene) spec(from Position, off []engine.Mechanism) engine.Spec {
	s.mu.Lock()
	s.count++
	number := s.count
	s.mu.Unlock()
	sp := engine.Spec{
		Version: engine.SpecVersion, Team: "decoy", Agent: "a", Name: "probe-" + strconv.Itoa(number),
		Role: engine.RoleRuntime, Root: engine.Root{Path: decoyRoot},
		Mounts: []engine.Mount{
			{Kind: engine.MountBind, Source: s.plan.Programs, Target: s.plan.Programs, Exec: true},
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 1 << 20, Mode: 0o1777},
		},
		Command: []string{filepath.Join(s.plan.Programs, "bulkhead-probe")}, Dir: "/", Hostname: "decoy",
		Limits: engine.DefaultLimits(), Off: off, Decoy: true,
	}
	if s.cgroups != nil {
		sp.Cgroup = DecoyCgroup + "/" + sp.Name
	}
	inside, host := uint32(layout.RuntimeID), s.a.IDs.Runtime()
	switch from {
	case FromRuntime:
		sp.Mounts = append(sp.Mounts, engine.Mount{Kind: engine.MountBind, Source: filepath.Join(decoyKnowledge, "a"), Target: insideGiven})
		if s.gateways != nil {
			sp.Mounts = append(sp.Mounts, engine.Mount{Kind: engine.MountBind, Source: gateOf(&sp).shown(), Target: insideGate})
			sp.Env = []string{wire.EnvTokenFile + "=" + insideGate + "/" + gateToken}
		}
	case FromCode:
		sp.Role, inside, host = engine.RoleRun, layout.ProcID, s.a.IDs.Proc()
	case FromGateway:
		sp.Role, inside, host = engine.RoleGateway, layout.GatewayID, s.a.IDs.Gateway()
		sp.Mounts = append(sp.Mounts, engine.Mount{Kind: engine.MountBind, Source: s.a.Place.DialerDir(), Target: s.a.Place.DialerDir()})
	}
	if !sp.Has(engine.MechUser) {
		host = s.b.IDs.Runtime()
	}
	// Without a user namespace the engine takes the host's side of the map.
	sp.User = engine.User{ID: inside, Map: []engine.IDMap{{Inside: inside, Host: host}}}
	return sp
}
