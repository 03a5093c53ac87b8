package wire

import (
	"encoding/json"
	"time"
)

// The warden protocol: operators -> warden, over layout.Host.WardenSocket.
// One request per connection; the answers are zero or more VerbProgress and
// then exactly one VerbResult or VerbError.
const (
	WardenProtocol = "warden"
	WardenVersion  = 1
)

// Verbs of the warden protocol.
const (
	VerbApply     = "apply"     // [ApplyRequest] -> [ApplyResult]
	VerbPlan      = "plan"      // [ApplyRequest] -> [PlanResult]; changes nothing
	VerbStatus    = "status"    // [TeamRequest] -> [StatusResult]
	VerbRestart   = "restart"   // [AgentRequest] -> [StatusResult]
	VerbHalt      = "halt"      // [AgentRequest]: stop agents, keep accounts, rules and data -> [StatusResult]
	VerbDown      = "down"      // [DownRequest] -> [DownResult]
	VerbLogs      = "logs"      // [LogsRequest] -> descriptors of the log files, oldest first
	VerbVerify    = "verify"    // [VerifyRequest] -> evidence.Report
	VerbProve     = "prove"     // [TeamRequest] -> prove.Report: statements from what the kernel holds; changes nothing
	VerbRun       = "run"       // [RunRequest]: a one-off container -> as VerbExec
	VerbDenials   = "denials"   // [AgentRequest] -> [DenialsResult]: what the warden and the kernel refused
	VerbAllow     = "allow"     // [AllowRequest] -> [AllowResult]
	VerbRevoke    = "revoke"    // [RevokeRequest] -> [GrantsResult]: what is left
	VerbForward   = "forward"   // [ForwardRequest] -> [ForwardResult] with a connected socket of the agent's loopback
	VerbWorkspace = "workspace" // [WorkspaceRequest] -> [WorkspaceResult] with the folder's descriptor
	VerbWatch     = "watch"     // [WatchRequest] -> VerbStarted, then VerbEvent with a record.Record each, until the operator leaves
	VerbWhy       = "why"       // [WhyRequest] -> [WhyResult]; changes nothing
	VerbFence     = "fence"     // [FenceRequest] -> [FenceResult]: cut off and freeze agents at once
	VerbUnfence   = "unfence"   // [AgentRequest] -> [StatusResult]
	VerbShutdown  = "shutdown"  // the warden ends; agents go on
	// VerbExec -> as in the shim protocol; its body here is [AgentExec].
	// VerbAttach -> as in the shim protocol; its body here is [AgentAttach].

	VerbProgress = "progress" // [Progress]
	VerbEvent    = "event"    // record.Record, unasked
	VerbResult   = "result"
)

// Exit codes of every command (docs/contracts/exit-codes.md).
const (
	ExitOK       = 0
	ExitFailed   = 1 // it was tried and failed, an attack succeeded, a control did not bite
	ExitBadInput = 2 // manifest, flags, names: nothing was changed
	ExitNoWarden = 3 // the warden is not running or cannot be reached
	ExitRefused  = 4 // the caller may not do this
	ExitBusy     = 6 // bulkhead-warden only: another warden serves this host
	ExitMissing  = 5 // this host lacks a feature that a layer needs; nothing was changed
)

// ApplyRequest carries a manifest. The warden parses it again: what the CLI
// checked is not believed.
type ApplyRequest struct {
	Path          string   `json:"path"` // for messages, and the folder that relative paths start from; absolute
	Manifest      []byte   `json:"manifest"`
	AcceptMissing []string `json:"acceptMissing,omitempty"` // deny.Layer values
	// Presets are the destinations that the manifest's presets stand for on this
	// host, by preset. The warden runs no client: it checks what it is given.
	Presets map[string][]string `json:"presets,omitempty"`
	// Clones are folders that root cloned for workspaces that begin with a
	// repository, by agent. The warden runs no git either.
	Clones map[string]string `json:"clones,omitempty"`
}

// TeamRequest names a team; empty means every team.
type TeamRequest struct {
	Team string `json:"team,omitempty"`
}

// Guests stands for all guests of a team where agents are named. It can be
// nobody's name.
const Guests = "@guests"

// AgentRequest names agents of a team; no agents means all of them.
type AgentRequest struct {
	Team   string   `json:"team"`
	Agents []string `json:"agents,omitempty"`
}

// DownRequest removes teams.
type DownRequest struct {
	Team  string `json:"team,omitempty"` // empty: every team
	Purge bool   `json:"purge,omitempty"`
}

// DownResult says what is gone and what was kept.
type DownResult struct {
	SchemaVersion int      `json:"schemaVersion"`
	Teams         []string `json:"teams"`
	Removed       []string `json:"removed"` // "account bh-pair-writer", "cgroup pair/writer", …
	Kept          []string `json:"kept,omitempty"`
}

// LogsRequest selects a log.
type LogsRequest struct {
	Team      string `json:"team"`
	Agent     string `json:"agent"`
	Container string `json:"container"` // "runtime" (default), "gateway", "dialer"
}

// AgentExec is VerbExec towards the warden.
type AgentExec struct {
	Team      string      `json:"team"`
	Agent     string      `json:"agent"`
	Container string      `json:"container,omitempty"` // "runtime" by default
	Exec      ExecRequest `json:"exec"`
}

// AgentAttach is VerbAttach towards the warden.
type AgentAttach struct {
	Team   string        `json:"team"`
	Agent  string        `json:"agent"`
	Attach AttachRequest `json:"attach"`
}

// RunRequest starts a one-off container with an agent's runtime profile, but
// without its home, workspace, listeners or gateway.
type RunRequest struct {
	Team  string      `json:"team"`
	Agent string      `json:"agent"`
	Exec  ExecRequest `json:"exec"`
	// Fresh takes no prepared process: for those who measure.
	Fresh bool `json:"fresh,omitempty"`
}

// VerifyRequest starts attacks.
type VerifyRequest struct {
	Team       string   `json:"team"`
	Agents     []string `json:"agents,omitempty"`
	Engine     string   `json:"engine,omitempty"` // "cell" or "podman": attack from the agents with this one
	NoControls bool     `json:"noControls,omitempty"`
	Attacks    []string `json:"attacks,omitempty"` // by id; empty: all
}

// Progress is one line for the person who waits.
type Progress struct {
	Agent string `json:"agent,omitempty"`
	Step  string `json:"step"`
}

// Result wraps the verb's own result.
type Result = json.RawMessage

// Action is what a plan would do.
type Action string

// The actions of a plan.
const (
	ActionCreate  Action = "create"
	ActionUpdate  Action = "update" // without a restart
	ActionRestart Action = "restart"
	ActionRemove  Action = "remove"
	ActionKeep    Action = "keep"
	ActionStart   Action = "start" // unchanged, but stopped
)

// Change is one line of a plan.
type Change struct {
	Agent  string   `json:"agent"`
	Action Action   `json:"action"`
	Why    []string `json:"why,omitempty"` // "egress: + api.example.com:443"
}

// PlanResult is what would change.
type PlanResult struct {
	SchemaVersion int      `json:"schemaVersion"`
	Team          string   `json:"team"`
	Changes       []Change `json:"changes"`
	MissingLayers []string `json:"missingLayers,omitempty"`
	// Grants are temporary destinations, which up leaves as they are.
	Grants []AgentGrants `json:"grants,omitempty"`
	// Presets are what the manifest's presets stand for.
	Presets map[string][]string `json:"presets,omitempty"`
	// Clones are the agents whose workspace has yet to begin with a repository.
	Clones []string `json:"clones,omitempty"`
}

// ApplyResult is what up did.
type ApplyResult struct {
	SchemaVersion int          `json:"schemaVersion"`
	Changes       []Change     `json:"changes"`
	Status        StatusResult `json:"status"`
}

// StatusResult is read from the kernel at the moment of asking.
type StatusResult struct {
	SchemaVersion int          `json:"schemaVersion"`
	Build         string       `json:"build,omitempty"`    // of the warden
	Programs      string       `json:"programs,omitempty"` // digest of what it starts agents with
	Teams         []TeamStatus `json:"teams"`
	// Services are the host's own servers that run for the teams; only when
	// every team was asked for.
	Services []AgentStatus `json:"services,omitempty"`
}

// TeamStatus is one team.
type TeamStatus struct {
	Team   string        `json:"team"`
	Agents []AgentStatus `json:"agents"`
	// Guests are those that were made through front; nil: there are none.
	Guests *GuestStatus `json:"guests,omitempty"`
}

// GuestStatus is a team's agents without a runtime, counted: there may be
// thousands. Awake and Asleep name the first twenty of each.
type GuestStatus struct {
	Made        int      `json:"made"`
	Max         int64    `json:"max"`
	Running     int      `json:"running"`
	MaxAwake    int64    `json:"maxAwake"`
	MemoryBytes int64    `json:"memoryBytes"` // of those that run
	Awake       []string `json:"awake"`
	Asleep      []string `json:"asleep,omitempty"`
	Fence       *Fence   `json:"fence,omitempty"`  // of all of them
	Fenced      []string `json:"fenced,omitempty"` // one by one, the first twenty
}

// AgentStatus is one agent. State is "running" only when every container runs
// and every layer was read back as in force. A layer that the operator accepted
// as missing is not in force, names what it lacks, and does not change State as
// long as the rest of it holds.
type AgentStatus struct {
	Agent      string            `json:"agent"`
	State      string            `json:"state"` // running, degraded, starting, stopped, exited, failed, fenced
	Why        string            `json:"why,omitempty"`
	Account    string            `json:"account"`
	Range      string            `json:"range"`              // host ids
	Programs   string            `json:"programs,omitempty"` // of ours that it runs with: after an upgrade the former ones, until it is restarted
	Containers []ContainerStatus `json:"containers"`
	Layers     []LayerStatus     `json:"layers"`
	Restarts   int               `json:"restarts"`
	Grants     []Grant           `json:"grants,omitempty"` // temporary destinations
	Disks      []DiskStatus      `json:"disks,omitempty"`  // those that are mounted
	Fence      *Fence            `json:"fence,omitempty"`  // why and since when it is fenced
	// Raised are limits of the runtime's processes above what they are by default.
	Raised *Raised `json:"raised,omitempty"`
	// Notices are what the agent told its operator since the warden began.
	Notices *Heard `json:"notices,omitempty"`
	// Outbox is the state of its gateway's, when messages wait there or were lost.
	Outbox *OutboxStatus `json:"outbox,omitempty"`
	// Gaps are parts of channels that the agent should have got and that nobody
	// has any more, as its gateway told since the warden began.
	Gaps *Heard `json:"gaps,omitempty"`
	// Asking is how many of its calls wait for a person, when some do.
	Asking *Asking `json:"asking,omitempty"`
}

// Raised are limits as /proc/PID/limits of the runtime has them: the hard ones.
type Raised struct {
	NoFile    uint64 `json:"noFile"`    // open files of a process
	CoreBytes uint64 `json:"coreBytes"` // of a core file
	Witness   string `json:"witness"`
}

// Heard is how often, and when last.
type Heard struct {
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

// OutboxStatus is what a gateway says of its outbox.
type OutboxStatus struct {
	Outbox
	// Lost is what the warden heard of messages that found no place, since it
	// began; nil: of none.
	Lost *Heard `json:"lost,omitempty"`
}

// DiskStatus is one file system of an agent, as statfs(2) has it: what it holds
// is a little less than the manifest's limits.disk, which includes its tables.
type DiskStatus struct {
	Name       string `json:"name"` // of the container that writes to it
	Bytes      int64  `json:"bytes"`
	UsedBytes  int64  `json:"usedBytes"`
	Inodes     int64  `json:"inodes"`
	UsedInodes int64  `json:"usedInodes"`
}

// ContainerStatus is one container.
type ContainerStatus struct {
	Name        string `json:"name"`
	Running     bool   `json:"running"`
	PID         int    `json:"pid,omitempty"` // on the host
	HostID      uint32 `json:"hostID"`
	Exit        *int   `json:"exit,omitempty"`
	MemoryBytes int64  `json:"memoryBytes"`
	Since       string `json:"since,omitempty"` // RFC 3339
}

// LayerStatus is what was read back for one layer.
type LayerStatus struct {
	Layer   string `json:"layer"`
	InForce bool   `json:"inForce"`
	Witness string `json:"witness"` // what was read, and where
}
