package wire

import (
	"net/netip"
	"time"

	"bulkhead/internal/deny"
)

// DenialsResult is what the warden and the kernel refused. The gateway's own
// records are in its log (VerbLogs): two witnesses that do not know each other.
type DenialsResult struct {
	SchemaVersion int            `json:"schemaVersion"`
	Team          string         `json:"team"`
	Agents        []AgentDenials `json:"agents"`
	Adapter       bool           `json:"adapter,omitempty"` // the team has an adapter, whose log tells of refused messages
}

// AgentDenials is what one agent was refused.
type AgentDenials struct {
	Agent   string        `json:"agent"`
	Denials []Denial      `json:"denials"`
	Witness DenialWitness `json:"witness"`
}

// Denial is one destination, or other thing, that was refused, with how often.
type Denial struct {
	Target string      `json:"target"`
	Reason deny.Reason `json:"reason"`
	Count  uint64      `json:"count"`
	First  time.Time   `json:"first"`
	Last   time.Time   `json:"last"`
	By     []string    `json:"by"` // who says so: "gateway", "warden"
}

// DenialWitness are counters that no agent can reach.
type DenialWitness struct {
	PinsGranted    uint64               `json:"pinsGranted"` // by the warden, to the agent's dialer
	PinsDenied     uint64               `json:"pinsDenied"`
	PinsByCode     map[deny.Code]uint64 `json:"pinsByCode,omitempty"`
	RefusedPackets uint64               `json:"refusedPackets"` // by nftables, of the agent's dialer
	Since          time.Time            `json:"since"`          // the warden's counters start here
	Problem        string               `json:"problem,omitempty"`
}

// WatchRequest asks for events; empty fields mean all.
type WatchRequest struct {
	Team  string `json:"team,omitempty"`
	Agent string `json:"agent,omitempty"`
}

// WhyRequest asks whether an agent may do something.
type WhyRequest struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
	What  string `json:"what"` // "host:port", "/path", a system call's name, "message:TO[/TYPE]", "secret:NAME", "limit:NAME"
}

// Kinds of what a [WhyResult] is about.
const (
	WhyDestination = "destination"
	WhyPath        = "path"
	WhySyscall     = "syscall"
	WhyMessage     = "message"
	WhyTopic       = "topic"
	WhyTool        = "tool"
	WhySecret      = "secret"
	WhyLimit       = "limit"
)

// WhyKinds gives every kind; docs/contracts/json.md lists them.
func WhyKinds() []string {
	return []string{WhyDestination, WhyPath, WhySyscall, WhyMessage, WhyTopic, WhyTool, WhySecret, WhyLimit}
}

// Verdicts of a [WhyResult].
const (
	WhyAllowed = "allowed"
	WhyDenied  = "denied"
	WhyDepends = "depends" // on the call's arguments, or on who owns the file
)

// WhyResult names the one layer that decides, its rule, and the change that
// would allow what is denied.
type WhyResult struct {
	SchemaVersion int          `json:"schemaVersion"`
	Team          string       `json:"team"`
	Agent         string       `json:"agent"`
	What          string       `json:"what"`
	Kind          string       `json:"kind"` // destination, path, syscall, message, secret, limit
	Verdict       string       `json:"verdict"`
	Layer         deny.Layer   `json:"layer"`
	Code          deny.Code    `json:"code,omitempty"`
	Rule          string       `json:"rule"`
	Mend          string       `json:"mend,omitempty"`
	Addresses     []netip.Addr `json:"addresses,omitempty"` // a destination's, as they would be pinned; with Via the proxy's
	Via           string       `json:"via,omitempty"`       // the upstream proxy by which it is reached
}
