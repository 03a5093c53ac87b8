package warden

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/host/account"
	"bulkhead/internal/host/doctor"
	"bulkhead/internal/wire"
)

// status is the adapter's row, read back from the kernel now.
func (a *adapterRun) status(ctx context.Context) wire.AgentStatus {
	a.mu.Lock()
	want, problem, restarts, accepted, agents, with := a.owned, a.problem, a.restarts, a.accepted, a.wants.agents, a.with
	a.mu.Unlock()
	c := wire.ContainerStatus{Name: adapterContainer, HostID: a.uid}
	if pid, ok := a.peek(); ok {
		c.Running, c.PID, c.MemoryBytes = true, pid, a.w.memoryOf(a.cgroup())
	}
	s := wire.AgentStatus{
		Agent: a.place.Name, Account: a.place.Account, Range: "account " + strconv.FormatUint(uint64(a.uid), 10), Programs: with, Restarts: restarts, Why: problem,
		Containers: []wire.ContainerStatus{c}, Layers: []wire.LayerStatus{},
	}
	inForce := true
	add := func(layer deny.Layer, i host.Inspection, err error) {
		l := wire.LayerStatus{Layer: string(layer), InForce: err == nil && i.InForce, Witness: i.Witness}
		if err != nil {
			l.Witness = err.Error()
		}
		holds := l.InForce
		if slices.Contains(accepted, l.Layer) {
			l.InForce = false
			l.Witness = lacking(ctx, doctor.Here(), doctor.Features(), l.Layer) + ", accepted by the operator; the rest: " + l.Witness
		}
		if !holds {
			inForce = false
			if s.Why == "" {
				s.Why = "layer " + l.Layer + " is not in force: " + l.Witness
			}
		}
		s.Layers = append(s.Layers, l)
	}
	i, err := a.inspectAccount()
	add(deny.LayerAccount, i, err)
	add(deny.LayerEgress, inspectNoNetwork(c), nil)
	i, err = a.inspectSockets(agents)
	add(deny.LayerMessages, i, err)
	add(deny.LayerPod, inspectCell(c, a.uid), nil)
	s.State = stateWord(want, problem, c.Running, inForce, c.Running)
	return s
}

// peek says whether the adapter runs without waiting for whoever changes it at
// this moment.
func (a *adapterRun) peek() (int, bool) {
	p := a.w.adopt(a.processPath(), a.uid, a.cgroup())
	if p == nil {
		return 0, false
	}
	defer func() { _ = p.pidfd.Close() }()
	return p.identity.PID, p.alive()
}

// inspectAccount reads the account files back.
func (a *adapterRun) inspectAccount() (host.Inspection, error) {
	d, err := account.Read(a.w.accounts.Etc)
	if err != nil {
		return host.Inspection{}, err
	}
	u, ok := d.User(a.place.Account)
	switch {
	case !ok:
		return host.Inspection{Witness: a.w.accounts.Etc + "/passwd does not hold " + a.place.Account}, nil
	case u.UID != a.uid:
		return host.Inspection{Witness: fmt.Sprintf("%s has uid %d, its process %d; bulkhead up", u.Name, u.UID, a.uid)}, nil
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("/etc/passwd uid %d, no subordinate ids", u.UID)}, nil
}

// inspectNoNetwork reads which interfaces the adapter's namespace has.
func inspectNoNetwork(c wire.ContainerStatus) host.Inspection {
	if !c.Running {
		return host.Inspection{Witness: "the adapter does not run"}
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", c.PID))
	if err != nil {
		return host.Inspection{Witness: err.Error()}
	}
	if ns, err := hostNamespace("net"); err != nil || ns == own {
		return host.Inspection{Witness: "it shares the host's network namespace"}
	}
	path := fmt.Sprintf("/proc/%d/net/dev", c.PID)
	raw, err := os.ReadFile(path) // #nosec G304 -- procfs
	if err != nil {
		return host.Inspection{Witness: err.Error()}
	}
	for line := range strings.Lines(string(raw)) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && name != "lo" {
			return host.Inspection{Witness: path + ": it has the interface " + name}
		}
	}
	return host.Inspection{InForce: true, Witness: path + ": a network namespace of its own with loopback only"}
}

// inspectCell reads what confines the adapter.
func inspectCell(c wire.ContainerStatus, uid uint32) host.Inspection {
	if !c.Running {
		return host.Inspection{Witness: "the adapter does not run"}
	}
	got, err := confinementOf(c.PID)
	if err == nil {
		err = got.checkFor(uid, uid, false)
	}
	if err == nil {
		err = ownNamespaces(c.PID, "mnt", "pid", "ipc", "uts", "cgroup")
	}
	if err != nil {
		return host.Inspection{Witness: fmt.Sprintf("adapter, process %d: %v", c.PID, err)}
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("/proc/%d: seccomp filter, no new privileges, no capabilities, own namespaces, id %d", c.PID, uid)}
}

// ownNamespaces refuses a process that shares one of the host's namespaces.
func ownNamespaces(pid int, kinds ...string) error {
	for _, kind := range kinds {
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return err
		}
		ours, err := hostNamespace(kind)
		if err != nil {
			return err
		}
		if own == ours {
			return fmt.Errorf("shares the host's %s namespace", kind)
		}
	}
	return nil
}

// inspectSockets reads back who may connect to whose socket, and that the
// kernel has a listener on each.
func (a *adapterRun) inspectSockets(agents map[string]protocol.Agent) (host.Inspection, error) {
	if _, running := a.peek(); !running {
		return host.Inspection{Witness: "the adapter does not run"}, nil
	}
	for _, name := range slices.Sorted(maps.Keys(agents)) {
		if problem, err := socketProblem(a.w.host.Agent(a.place.Team, name).AdapterSocket(), agents[name].GatewayID); problem != "" || err != nil {
			return host.Inspection{Witness: problem}, err
		}
	}
	if problem, err := socketProblem(a.place.OperatorSocket(), 0); problem != "" || err != nil {
		return host.Inspection{Witness: problem}, err
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("/proc/net/unix: %d agents' sockets and the operator's listen, each for one id", len(agents))}, nil
}

// socketProblem says what is wrong with a listening socket for one id; empty
// when nothing is. It must belong to root, lie in a folder that only root can
// change, and let that id's group and nobody else connect.
func socketProblem(path string, gid uint32) (string, error) {
	var dir, st unix.Stat_t
	if err := unix.Lstat(filepath.Dir(path), &dir); err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Dir(path), err)
	}
	if err := unix.Lstat(path, &st); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	mode := uint32(unix.S_IFSOCK | 0o660)
	if gid == 0 {
		mode = unix.S_IFSOCK | 0o600
	}
	switch {
	case dir.Uid != 0 || dir.Mode&0o022 != 0:
		return fmt.Sprintf("%s belongs to %d with mode %o: it must be root's alone", filepath.Dir(path), dir.Uid, dir.Mode&0o7777), nil
	case st.Uid != 0 || st.Gid != gid || st.Mode != mode:
		return fmt.Sprintf("%s is %d:%d with mode %o, want 0:%d with mode %o", path, st.Uid, st.Gid, st.Mode, gid, mode), nil
	}
	on, err := listening(path)
	if err == nil && !on {
		return "nobody listens on " + path, nil
	}
	return "", err
}

// listensIn finds path among the listening sockets of /proc/net/unix:
// "Num: RefCount Protocol Flags Type St Inode Path", in hex but for the inode.
func listensIn(table, path string) bool {
	const acceptCon = 0x10000 // include/linux/net.h, __SO_ACCEPTCON
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) != 8 || f[7] != path {
			continue
		}
		flags, err := strconv.ParseUint(f[3], 16, 64)
		if err == nil && flags&acceptCon != 0 {
			return true
		}
	}
	return false
}

// messagesLayer is layer 3a for one agent: its own socket at the team's adapter,
// and its token, without which nobody speaks as it.
type messagesLayer struct{ w *Warden }

// Name implements host.Layer.
func (messagesLayer) Name() deny.Layer { return deny.LayerMessages }

func (l messagesLayer) adapterOf(a *host.Agent) (*teamRun, error) {
	t, err := l.w.team(a.Place.Team)
	if err != nil {
		return nil, err
	}
	if t.adapter == nil {
		return nil, fmt.Errorf("team %s has no adapter", t.name)
	}
	return t, nil
}

// Plan implements host.Layer.
func (l messagesLayer) Plan(ctx context.Context, a *host.Agent) ([]string, error) {
	i, err := l.Inspect(ctx, a)
	if err != nil || i.InForce {
		return nil, err
	}
	return []string{"open the adapter's socket to " + a.Place.Name}, nil
}

// Apply implements host.Layer: it starts the team's adapter, which has a socket
// for each of its agents.
func (l messagesLayer) Apply(ctx context.Context, a *host.Agent) error {
	t, err := l.adapterOf(a)
	if err != nil {
		return err
	}
	return l.w.startAdapter(ctx, t, func(string, string) {})()
}

// Inspect implements host.Layer: it reads the agent's socket back.
func (l messagesLayer) Inspect(_ context.Context, a *host.Agent) (host.Inspection, error) {
	t, err := l.adapterOf(a)
	if err != nil {
		return host.Inspection{}, err
	}
	pid, running := t.adapter.peek()
	if !running {
		return host.Inspection{Witness: "the adapter does not run; see bulkhead status"}, nil
	}
	problem, err := socketProblem(a.Place.AdapterSocket(), a.IDs.Gateway())
	if problem != "" || err != nil {
		return host.Inspection{Witness: problem}, err
	}
	return host.Inspection{InForce: true, Witness: fmt.Sprintf("%s: root's, listening, for id %d alone; adapter %d", a.Place.AdapterSocket(), a.IDs.Gateway(), pid)}, nil
}

// Remove implements host.Layer.
func (messagesLayer) Remove(_ context.Context, a *host.Agent) error {
	if err := unix.Unlink(a.Place.AdapterSocket()); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("warden: %w", err)
	}
	return nil
}

// Without implements host.Layer.
func (messagesLayer) Without(s engine.Spec) engine.Spec { return s.Without(deny.LayerMessages) }
