// Package layout names every path, id and account that Bulkhead makes on a
// host, in one place, so that creation, inspection and removal cannot differ.
//
// It only computes: nothing here touches the host.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"
)

// Host is the set of roots below which everything lives. The zero value is
// not usable; take [Default].
type Host struct {
	State string // root-owned, survives a reboot
	Run   string // root-owned, tmpfs, vanishes at reboot
	Etc   string // the operator's own files
}

// Default is the layout of an installed Bulkhead.
func Default() Host {
	return Host{State: "/var/lib/bulkhead", Run: "/run/bulkhead", Etc: "/etc/bulkhead"}
}

// WardenSocket is where operators reach the warden.
func (h Host) WardenSocket() string { return filepath.Join(h.Run, "warden.sock") }

// WardenLock is held with flock by the one running warden. It lies beside the
// ledger and not in Run, which the last down removes while it still is held.
func (h Host) WardenLock() string { return filepath.Join(h.State, "warden.lock") }

// CgroupPlace holds where our root cgroup is. Like cgroups it does not survive
// a reboot.
func (h Host) CgroupPlace() string { return filepath.Join(h.Run, "cgroup.json") }

// WardenLog is the warden's own log when nothing else (systemd) takes it.
func (h Host) WardenLog() string { return filepath.Join(h.State, "log", "warden.log") }

// Reserve is room on the disk that the warden gives up when it needs it.
func (h Host) Reserve() string { return filepath.Join(h.State, "reserve") }

// Ledger is the append-only list of everything that we made on this host.
func (h Host) Ledger() string { return filepath.Join(h.State, "ledger.jsonl") }

// Images is the root-owned image store: one folder per image name.
func (h Host) Images() string { return filepath.Join(h.State, "images") }

// Image is the folder of one image; its root file system is "rootfs" in it.
func (h Host) Image(name string) string { return filepath.Join(h.Images(), name) }

// Clones holds repositories on their way into a workspace, each for the time of an
// up, mode 0700.
func (h Host) Clones() string { return filepath.Join(h.State, "clones") }

// Programs is the root-owned copy of the programs of one build, from which
// every agent runs. A running agent keeps its build when Bulkhead is upgraded.
func (h Host) Programs(build string) string { return filepath.Join(h.State, "programs", build) }

// Evidence is root's folder of signed evidence: a history for each team, and keys.
func (h Host) Evidence() string { return filepath.Join(h.State, "evidence") }

// EvidenceOf is the history of one team, mode 0700.
func (h Host) EvidenceOf(team string) string { return filepath.Join(h.Evidence(), "teams", team) }

// EvidenceKeys holds the key that signs, and the public keys that did, mode 0700.
func (h Host) EvidenceKeys() string { return filepath.Join(h.Evidence(), "keys") }

// Team is the folder of one team's state.
func (h Host) Team(team string) string { return filepath.Join(h.State, "teams", team) }

// Manifest is the root-owned manifest in force for a team.
func (h Host) Manifest(team string) string { return filepath.Join(h.Team(team), "bulkhead.yaml") }

// ResolverDir holds the sockets of the resolver.
func (h Host) ResolverDir() string { return filepath.Join(h.Run, "resolver") }

// Agent gives the places of one agent.
func (h Host) Agent(team, agent string) Agent {
	return Agent{
		Team: team, Name: agent, Account: Account(team, agent),
		State: filepath.Join(h.Team(team), "agents", agent),
		Run:   filepath.Join(h.Run, "teams", team, agent),
	}
}

// Agent is where one agent lives. State and Run and everything directly in
// them are owned by root, and so are the two disks; only the leaves marked so
// belong to the agent's ids.
type Agent struct {
	Team, Name string
	Account    string // Linux account
	State, Run string
}

// RuntimeDisk is where the file system of what the runtime writes is mounted;
// RuntimeImage is the file that it is in.
func (a Agent) RuntimeDisk() string { return filepath.Join(a.State, "runtime") }

// RuntimeImage is root's alone, mode 0600.
func (a Agent) RuntimeImage() string { return a.RuntimeDisk() + ".img" }

// GatewayDisk is the same for the gateway: a runtime that fills its own disk
// must not stop its gateway's records.
func (a Agent) GatewayDisk() string { return filepath.Join(a.State, "gateway") }

// GatewayImage is root's alone, mode 0600.
func (a Agent) GatewayImage() string { return a.GatewayDisk() + ".img" }

// Home is the agent's HOME, owned by the runtime's id, mode 0700.
func (a Agent) Home() string { return filepath.Join(a.RuntimeDisk(), "home") }

// Workspace is the agent's working folder, owned by the runtime's id, 0700.
func (a Agent) Workspace() string { return filepath.Join(a.RuntimeDisk(), "workspace") }

// Data is the gateway's folder (memory, database, secrets), owned by the
// gateway's id, mode 0700.
func (a Agent) Data() string { return filepath.Join(a.GatewayDisk(), "data") }

// Logs is root's folder of what the agent's processes printed.
func (a Agent) Logs() string { return filepath.Join(a.State, "log") }

// Conf is root's folder of generated files (hosts, passwd, resolv.conf).
func (a Agent) Conf() string { return filepath.Join(a.Run, "conf") }

// Cloned is there when the workspace has begun with a clone, and beside the disk
// that it lies on: none is wanted again.
func (a Agent) Cloned() string { return filepath.Join(a.State, "cloned") }

// PodmanConf is root's folder of what Podman is told by path.
func (a Agent) PodmanConf() string { return filepath.Join(a.Conf(), "podman") }

// Control holds the sockets that only root may use: launcher.sock,
// runtime.sock and gateway.sock of the shims. Mode 0700 root.
func (a Agent) Control() string { return filepath.Join(a.Run, "control") }

// LauncherSocket is where the warden reaches the agent's launcher.
func (a Agent) LauncherSocket() string { return filepath.Join(a.Control(), "launcher.sock") }

// ShimSocket is where the warden reaches the shim of a container of this
// agent ("runtime", "gateway").
func (a Agent) ShimSocket(container string) string {
	return filepath.Join(a.Control(), container+".sock")
}

// GrantsSocket is where the warden tells the gateway of temporary destinations.
func (a Agent) GrantsSocket() string { return filepath.Join(a.Control(), "grants.sock") }

// GatewayDir is mounted read-only into the runtime; it holds gateway.sock.
func (a Agent) GatewayDir() string { return filepath.Join(a.Run, "gateway") }

// GatewaySocket is the runtime's one way out. Root-owned, mode 0660, group
// the runtime's id, in a root-owned folder: the runtime cannot swap it.
func (a Agent) GatewaySocket() string { return filepath.Join(a.GatewayDir(), "gateway.sock") }

// DialerDir is mounted read-only into the gateway; it holds dialer.sock.
func (a Agent) DialerDir() string { return filepath.Join(a.Run, "dialer") }

// DialerSocket is where the gateway asks its dialer for connections.
func (a Agent) DialerSocket() string { return filepath.Join(a.DialerDir(), "dialer.sock") }

// PinDir is mounted read-only into the dialer; it holds pin.sock.
func (a Agent) PinDir() string { return filepath.Join(a.Run, "pin") }

// PinSocket is where the dialer asks the warden to pin a destination.
func (a Agent) PinSocket() string { return filepath.Join(a.PinDir(), "pin.sock") }

// AdapterName is what the team's message adapter is called wherever an agent's
// name stands: in paths, accounts, plans and status. No agent may have it. Its
// AdapterData belongs to its own account, its other folders to root.
const AdapterName = "comm_adapter"

// AdapterData is the adapter's folder of messages, mode 0700.
func (a Agent) AdapterData() string { return filepath.Join(a.State, "data") }

// AdapterDir is mounted read-only into the gateway; it holds adapter.sock.
func (a Agent) AdapterDir() string { return filepath.Join(a.Run, "adapter") }

// AdapterSocket is where the gateway reaches the team's adapter: the agent's own
// socket there, mode 0660, group the gateway's id.
func (a Agent) AdapterSocket() string { return filepath.Join(a.AdapterDir(), "adapter.sock") }

// ProcDir is mounted read-only into the gateway; it holds proc.sock.
func (a Agent) ProcDir() string { return filepath.Join(a.Run, "proc") }

// ProcSocket is where the gateway has its launcher run code, mode 0660, group
// the gateway's id.
func (a Agent) ProcSocket() string { return filepath.Join(a.ProcDir(), "proc.sock") }

// OperatorSocket is where the warden speaks to the adapter for operators. It is
// in the adapter's own Control, which only root can enter.
func (a Agent) OperatorSocket() string { return filepath.Join(a.Control(), "operator.sock") }

// AdapterTokens holds the tokens of all gateways of the team towards the
// adapter: in the adapter's Run, root's alone. The adapter knows their hashes.
func (a Agent) AdapterTokens() string { return filepath.Join(a.Run, "tokens.json") }

// MaxAccountName is the longest account name that useradd takes (shadow's
// own limit, 32).
const MaxAccountName = 32

// SystemAccount owns the block of ids from which dialers take theirs. Its
// entry in /etc/subuid keeps every other tool from using the block.
const SystemAccount = "bulkhead"

// ResolverAccount runs the resolver.
const ResolverAccount = "bulkhead-dns"

// Account is the Linux account of an agent: bh-<team>-<agent>. When that is
// too long, or when team or agent contain a dash (so that a-b/c and a/b-c
// would collide), the tail is replaced by two dashes and ten hex digits of a
// SHA-256 over both names. A name that is not hashed never holds two dashes in
// a row, so no choice of an agent's name meets another's hash.
func Account(team, agent string) string {
	plain := "bh-" + team + "-" + agent
	ambiguous := strings.ContainsRune(team, '-') || strings.ContainsRune(agent, '-')
	if len(plain) <= MaxAccountName && !ambiguous {
		return plain
	}
	sum := sha256.Sum256([]byte(team + "\x00" + agent))
	tail := "--" + hex.EncodeToString(sum[:5])
	return strings.TrimRight(plain[:min(len(plain), MaxAccountName-len(tail))], "-") + tail
}
