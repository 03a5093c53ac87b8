package wire

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Grant is a destination that an operator allowed for a while, beside the
// manifest. The warden keeps it in the agent's run folder, so that it survives
// the warden and ends with the host's run.
type Grant struct {
	Target string    `json:"target"` // "host:port" as in the manifest, never a wildcard
	Until  time.Time `json:"until"`  // closed after it: pins, flows, gateway
	Once   bool      `json:"once,omitempty"`
	Spent  bool      `json:"spent,omitempty"` // a once that was used: its connection may go on until Until
	At     time.Time `json:"at"`              // when it was given
	By     uint32    `json:"by"`              // the operator's user id
}

// Live says whether new connections may use it.
func (g Grant) Live(now time.Time) bool { return !g.Spent && now.Before(g.Until) }

// AllowRequest asks for a temporary destination.
type AllowRequest struct {
	Team   string        `json:"team"`
	Agent  string        `json:"agent"`
	Target string        `json:"target"`
	For    time.Duration `json:"for"` // nanoseconds
	Once   bool          `json:"once,omitempty"`
}

// AllowResult comes after the kernel was read back and the gateway knows.
type AllowResult struct {
	SchemaVersion int              `json:"schemaVersion"`
	Team          string           `json:"team"`
	Agent         string           `json:"agent"`
	Grant         Grant            `json:"grant"`
	Pinned        []netip.AddrPort `json:"pinned"`
	Witness       string           `json:"witness"`
}

// RevokeRequest ends temporary destinations.
type RevokeRequest struct {
	Team   string `json:"team"`
	Agent  string `json:"agent"`
	Target string `json:"target,omitempty"` // empty: all of the agent's
}

// GrantsResult lists temporary destinations that are not over.
type GrantsResult struct {
	SchemaVersion int           `json:"schemaVersion"`
	Team          string        `json:"team"`
	Agents        []AgentGrants `json:"agents"`
}

// AgentGrants are one agent's.
type AgentGrants struct {
	Agent  string  `json:"agent"`
	Grants []Grant `json:"grants"`
}

// The grants protocol: warden -> gateway, over layout.Agent.GrantsSocket,
// which only root can reach.
const (
	GrantsProtocol = "grants"
	GrantsVersion  = 1
)

// VerbGrants, towards a gateway, replaces its temporary destinations: [Grants]
// -> VerbOK. Towards the warden it lists them: [AgentRequest] -> [GrantsResult].
const VerbGrants = "grants"

// VerbTrust, towards a gateway, says what it is to trust of tokens: token.Trust
// as control gave it -> VerbOK. It is said again every few seconds; a gateway
// that does not hear it refuses every token.
const VerbTrust = "trust"

// Grants is the complete list.
type Grants struct {
	Grants []Grant `json:"grants"`
}

// GatewayWatch, towards a gateway with VerbWatch, asks to hear of what happens:
// VerbStarted, then VerbEvent with a [GatewayEvent] each, until who asked leaves.
// It is asked on a connection of its own, on which nothing else may be asked
// afterwards. A gateway that nobody asks makes no events.
type GatewayWatch struct {
	// Calls asks for the tool calls that were allowed. Without it comes what a
	// person should hear of, and the state of the outbox whenever that changes.
	Calls bool `json:"calls,omitempty"`
	// Since has, with Calls, those calls come first that the gateway still keeps
	// and that are not older, refused ones included.
	Since time.Time `json:"since,omitzero"`
}

// GatewayEvent is one thing that happened.
type GatewayEvent struct {
	Record json.RawMessage `json:"record,omitempty"` // record.Record
	Outbox *Outbox         `json:"outbox,omitempty"`
	Asking *Asking         `json:"asking,omitempty"` // whenever it has changed
}

// Outbox is the state of a gateway's outbox.
type Outbox struct {
	Waiting int    `json:"waiting"` // messages that wait for the adapter
	Refused uint64 `json:"refused"` // that found no place, and were answered with messages.unavailable, since the gateway began
	// Gaps counts parts of channels that the agent should have got and that nobody
	// has any more, since the gateway began. status has them as gaps of the agent.
	Gaps uint64 `json:"gaps,omitempty"`
}

// VerbCalls, towards the warden, asks for a connection of which an agent's
// gateway tells its tool calls: [CallsRequest] -> VerbResult with the descriptor
// of a connection that was asked GatewayWatch and of which nothing was read.
const VerbCalls = "calls"

// CallsRequest names the agent.
type CallsRequest struct {
	Team  string    `json:"team"`
	Agent string    `json:"agent"`
	Since time.Time `json:"since,omitzero"`
}
