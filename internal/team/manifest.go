// Package team is the manifest: bulkhead.yaml, its defaults and its faults.
package team

import (
	"cmp"
	"net/netip"
	"strconv"
	"time"

	"bulkhead/internal/topic"
)

// APIVersion is the only manifest version that this build reads.
const APIVersion = "bulkhead/v1"

// Manifest is a valid manifest with every default filled in. It is only ever
// made by Parse.
type Manifest struct {
	APIVersion string
	Team       string
	Agents     []*Agent // in the order of the file
	// Orchestrator is the agent that is alerted of dead letters; empty: operators only.
	Orchestrator string
	Verify       Verify
	Presets      []string // presets that egress lists name, sorted
	Front        *Front   // nil: nobody reaches the agents from outside of them
	Audit        bool     // records go to a log that no agent changes
	// Topics are the public ones, by name without topic.Prefix; nil: there are none.
	Topics topic.Policy `json:",omitempty"`
}

// Guests is what agents may be made through front; nil: none.
func (m *Manifest) Guests() *Guests {
	if m == nil || m.Front == nil {
		return nil
	}
	return m.Front.Guests
}

// Mode is how long an agent's command lives.
type Mode string

// The modes.
const (
	ModeService Mode = "service" // started with the team, restarted when it ends
	ModeSession Mode = "session" // the container stays up; the command is started by exec or attach
	ModeTask    Mode = "task"    // started with the team, not restarted
)

// Agent is one agent of the team.
type Agent struct {
	Name      string
	Role      string
	Image     string // a name in the image store; exactly one of Image and Rootfs is set
	Rootfs    string // absolute host path
	Command   []string
	Env       map[string]string
	Mode      Mode
	Terminal  bool   `json:",omitempty"` // its command has a terminal, to which operators attach
	Workspace string // absolute host path of a folder to import, or a repository to clone ([Agent.Clone]); empty: an empty workspace
	Mounts    []Mount
	Ports     []uint16
	Egress    []Destination
	Hosts     map[string][]netip.Addr // fixed addresses of listed names, instead of DNS
	Channels  []string
	Messages  *Messages         `json:",omitempty"` // nil: it may write to nobody directly
	Secrets   map[string]string // environment-like name -> op:// reference
	Knowledge string
	Limits    Limits
	Engine    string // "cell" or "podman"
	OCI       string // "", "runc", "crun", "runsc", "krun"
	Tools     *Tools `json:",omitempty"` // nil: its gateway serves it none but those of messages
	Ask       *Ask   `json:",omitempty"` // nil: no call of a tool waits for a person

	// The team's, the same for each of its agents. Without them an agent's
	// digest is what it was before there were any.
	Upstream *Upstream  `json:",omitempty"`
	CAFiles  []HostFile `json:",omitempty"`

	// Guest says that it was made through front: it has a gateway and no runtime.
	Guest bool `json:",omitempty"`
}

// HostFile is a file of the host that root reads, and where the manifest names
// it.
type HostFile struct {
	Path     string
	Position string `json:"-"` // "bulkhead.yaml:4:11"
}

// Mount is a read-only folder or file of the host.
type Mount struct {
	Host   string // absolute, on the host
	Target string // absolute, inside
}

// SNIMode is how strictly a destination's protocol is bound to its name.
type SNIMode string

// The SNI modes.
const (
	SNIExact SNIMode = "exact" // ClientHello and Host must name the destination
	SNIAny   SNIMode = "any"   // not checked; verify reports it
)

// Destination is one thing that an agent may connect to.
type Destination struct {
	Host     string     // lower-case name, "*.suffix", or "host" for this host's loopback; empty when Address is set
	Address  netip.Addr // an address named literally
	Port     uint16
	SNI      SNIMode
	Line     int // of the manifest, for "mend" texts
	Position string
}

// Limits bound an agent; zero means the default: the engine's, and of those
// below the line what WithDefaults gives.
type Limits struct {
	MemoryBytes int64
	MilliCPU    int64
	PIDs        int64
	NoFile      uint64
	CoreBytes   uint64
	StopGrace   time.Duration

	// These are left out of the digest when they are zero, so that builds that
	// did not know them and builds that do agree on what runs.
	DiskBytes   int64 `json:",omitempty"` // of the file system that HOME and workspace lie on, its own tables included
	Inodes      int64 `json:",omitempty"` // files and folders on it
	LogBytes    int64 `json:",omitempty"` // of what its runtime printed, all files together
	Connections int64 `json:",omitempty"` // open at a time through its dialer
}

// Target names the destination as the manifest does: "api.example.com:443",
// "*.example.com:443", "host:11434", "203.0.113.7:5432", "[2001:db8::1]:443".
func (d Destination) Target() string {
	if d.Host == "" {
		return netip.AddrPortFrom(d.Address, d.Port).String()
	}
	return d.Host + ":" + strconv.Itoa(int(d.Port))
}

// Agent gives the agent of that name, or nil.
func (m *Manifest) Agent(name string) *Agent {
	for _, a := range m.Agents {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// WithDefaults fills in what an agent gets of the host's disk and network unless
// the manifest says otherwise.
func (l Limits) WithDefaults() Limits {
	l.DiskBytes = cmp.Or(l.DiskBytes, defaultDisk)
	l.Inodes = cmp.Or(l.Inodes, l.DiskBytes/bytesPerInode)
	l.LogBytes = cmp.Or(l.LogBytes, defaultLogs)
	l.Connections = cmp.Or(l.Connections, defaultConnections)
	return l
}
