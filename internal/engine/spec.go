// Package engine describes one container of an agent, for every engine alike.
//
// A [Spec] is complete: what an engine starts from it depends on nothing else.
// An engine that cannot keep a field refuses the Spec; it never drops it.
// The JSON form is versioned, lies on disk beside the running container, and
// is part of the contract (docs/contracts/spec.md).
package engine

import "net/netip"

// SpecVersion is the version of the JSON form.
const SpecVersion = 1

// Role says what a container is for, and with it which profile confines it.
type Role string

// The roles.
const (
	RoleRuntime  Role = "runtime"  // the agent framework, under the shim
	RoleGateway  Role = "gateway"  // that agent's gateway
	RoleRun      Role = "run"      // a one-off command with the runtime's profile
	RoleDialer   Role = "dialer"   // in the host's network namespace, bound by nftables
	RoleResolver Role = "resolver" // in the host's network namespace, may reach DNS servers
	RoleAdapter  Role = "adapter"  // the team's message adapter: the initial user namespace, no network
	RoleService  Role = "service"  // control, audit or front: the initial user namespace, no network of its own
	RoleAccount  Role = "account"  // the bare account inside its cell: attacks only
)

// Kind is which engine starts a container.
type Kind string

// The engines.
const (
	Cell   Kind = "cell"   // our own launcher
	Podman Kind = "podman" // rootless Podman and an OCI runtime
)

// Spec is one container.
type Spec struct {
	Version int    `json:"version"`
	Team    string `json:"team"`
	Agent   string `json:"agent"`
	Name    string `json:"name"` // unique within the agent: "runtime", "gateway", "run-7f3a"
	Role    Role   `json:"role"`

	// Engine starts the container; empty is [Cell]. OCIRuntime is the program
	// that [Podman] shall use; empty leaves it to the engine.
	Engine     Kind   `json:"engine,omitempty"`
	OCIRuntime string `json:"ociRuntime,omitempty"`

	Root   Root    `json:"root"`
	Mounts []Mount `json:"mounts,omitempty"`
	User   User    `json:"user"`

	// Init is run as PID 1 with Command as what it supervises: the shim. Empty
	// runs Command itself as PID 1 (dialer, resolver, one-off runs).
	Init     []string `json:"init,omitempty"`
	Command  []string `json:"command"`
	Env      []string `json:"env,omitempty"` // complete: nothing is inherited
	Dir      string   `json:"dir"`
	Hostname string   `json:"hostname"`

	Network Network `json:"network"`
	Limits  Limits  `json:"limits"`
	Cgroup  string  `json:"cgroup"` // below Bulkhead's root cgroup: "pair/writer/runtime"

	// AppArmor is the profile that the container's processes run under, which
	// root has loaded; empty where the kernel has none.
	AppArmor string `json:"appArmor,omitempty"`

	// Off names mechanisms that are switched off. Only decoys of the evidence
	// package may have any; engines refuse it on every other container.
	Off   []Mechanism `json:"off,omitempty"`
	Decoy bool        `json:"decoy,omitempty"`

	// AcceptMissing names mechanisms that may be weaker or absent because this
	// kernel lacks them; the operator said so (--accept-missing). Anything else
	// that is missing refuses the container.
	AcceptMissing []Mechanism `json:"acceptMissing,omitempty"`
}

// Root is the container's root file system.
type Root struct {
	// Path is a root-owned folder that nothing of an agent can write. It is
	// mounted read-only, nosuid, nodev. Empty gives an empty root that holds
	// only the Mounts (programs of ours, which are static).
	Path string `json:"path,omitempty"`
}

// MountKind is how a mount is made.
type MountKind string

// The kinds of mount.
const (
	MountBind  MountKind = "bind"  // a folder or file of the host
	MountTmpfs MountKind = "tmpfs" // memory, with Size
)

// Mount is one entry of the container's file tree. All are nosuid and nodev.
type Mount struct {
	Kind     MountKind `json:"kind"`
	Source   string    `json:"source,omitempty"` // host path; opened beneath root-owned parents without following links
	Target   string    `json:"target"`           // absolute inside path
	Writable bool      `json:"writable,omitempty"`
	Exec     bool      `json:"exec,omitempty"`
	Size     int64     `json:"size,omitempty"` // bytes, tmpfs only
	Mode     uint32    `json:"mode,omitempty"` // tmpfs only, e.g. 0o1777
}

// User is whom the container runs as. Inside ids are mapped one by one to the
// host ids in Map; no other id exists inside, 0 included. (OCI runtimes insist
// on a 0 of their own: the podman engine refuses a Map without the one that
// layout.EngineID names, which owns nothing.)
type User struct {
	ID  uint32  `json:"id"`            // inside id of the process, user and group alike
	Map []IDMap `json:"map,omitempty"` // empty: the initial user namespace, and ID is a host id
}

// IDMap maps one inside id to one host id, for users and groups alike.
type IDMap struct {
	Inside uint32 `json:"inside"`
	Host   uint32 `json:"host"`
}

// Network is what a container sees of networks.
type Network struct {
	// Host leaves the process in the host's network namespace: dialer and
	// resolver only.
	Host bool `json:"host,omitempty"`
	// Loopback are extra addresses on lo. Each prefix becomes local as a whole.
	Loopback []netip.Prefix `json:"loopback,omitempty"`
	// UnprivilegedPorts lets every id inside bind ports below 1024, so that the
	// shim can listen on 443 without a capability.
	UnprivilegedPorts bool `json:"unprivilegedPorts,omitempty"`
}

// Limits bound the container's whole process tree. Zero means the default of
// [DefaultLimits]; there is no "unlimited".
type Limits struct {
	MemoryBytes int64  `json:"memoryBytes,omitempty"` // memory + swap
	MilliCPU    int64  `json:"milliCPU,omitempty"`    // 1000 is one core
	PIDs        int64  `json:"pids,omitempty"`
	NoFile      uint64 `json:"noFile,omitempty"` // RLIMIT_NOFILE
	CoreBytes   uint64 `json:"coreBytes"`        // RLIMIT_CORE; 0 is the default and means no core file
	// FileBytes is RLIMIT_FSIZE, the size of one file; 0 leaves that to what
	// the file lies on. The podman engine does not know it.
	FileBytes uint64 `json:"fileBytes,omitempty"`
}

// DefaultLimits are used for every field that is zero.
func DefaultLimits() Limits {
	return Limits{MemoryBytes: 1 << 30, MilliCPU: 1000, PIDs: 512, NoFile: 1024}
}

// WithDefaults fills zero fields from [DefaultLimits].
func (l Limits) WithDefaults() Limits {
	d := DefaultLimits()
	if l.MemoryBytes == 0 {
		l.MemoryBytes = d.MemoryBytes
	}
	if l.MilliCPU == 0 {
		l.MilliCPU = d.MilliCPU
	}
	if l.PIDs == 0 {
		l.PIDs = d.PIDs
	}
	if l.NoFile == 0 {
		l.NoFile = d.NoFile
	}
	return l
}

// Mechanism is one protection that evidence can switch off in a decoy.
type Mechanism string

// The mechanisms, each kept by a subsystem of its own.
const (
	MechUser       Mechanism = "user-id"         // own host ids (off: shares the target's id)
	MechUserNS     Mechanism = "user-namespace"  // off: the initial one
	MechMountNS    Mechanism = "mount-namespace" // off: sees the host's tree
	MechPIDNS      Mechanism = "pid-namespace"   // off: sees the host's processes
	MechNetNS      Mechanism = "net-namespace"   // off: the (decoy) host's network
	MechReadOnly   Mechanism = "read-only-root"  // off: the root is writable, and so is what is mounted
	MechSeccomp    Mechanism = "seccomp"
	MechLandlock   Mechanism = "landlock"
	MechCaps       Mechanism = "capabilities" // off: keeps every capability of its user namespace
	MechNoNewPrivs Mechanism = "no-new-privileges"
	MechNftables   Mechanism = "nftables" // off: no rule for its id
	MechGuard      Mechanism = "guard"    // off: no name and address check before dialling
	MechLimits     Mechanism = "limits"   // off: no cgroup limit, and the starter's number of files
	MechQuota      Mechanism = "quota"    // off: writes to a folder of the host, not to a disk of its own
	MechGateway    Mechanism = "gateway"  // off: is shown to another agent's gateway, and has its token
)

// Mechanisms lists them all.
func Mechanisms() []Mechanism {
	return []Mechanism{
		MechUser, MechUserNS, MechMountNS, MechPIDNS, MechNetNS, MechReadOnly, MechSeccomp, MechLandlock,
		MechCaps, MechNoNewPrivs, MechNftables, MechGuard, MechLimits, MechQuota, MechGateway,
	}
}

// Has says whether m is in force in s, that is, not switched off.
func (s *Spec) Has(m Mechanism) bool {
	for _, o := range s.Off {
		if o == m {
			return false
		}
	}
	return true
}

// Accepts says whether s may run without m on a kernel that lacks it.
func (s *Spec) Accepts(m Mechanism) bool {
	for _, a := range s.AcceptMissing {
		if a == m {
			return true
		}
	}
	return false
}
