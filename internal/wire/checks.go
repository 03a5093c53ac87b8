package wire

import "time"

// Verbs of the checks that go on while a team runs (docs/contracts/checks.md).
const (
	VerbChecks      = "checks"       // [TeamRequest] -> [Checks]
	VerbVerifyWatch = "verify.watch" // [CheckRequest] -> VerbStarted, then VerbEvent with a [Check] each, until the operator leaves
)

// CheckRequest asks to hear of checks, and for one at least so often.
type CheckRequest struct {
	Team  string        `json:"team"`
	Every time.Duration `json:"every"` // nanoseconds, at least a minute
}

// Check is one check of a running team.
type Check struct {
	SchemaVersion int       `json:"schemaVersion"`
	Time          time.Time `json:"time"` // UTC
	Team          string    `json:"team"`
	Why           string    `json:"why"`     // "clock", "change", "network", "watch"
	Held          int       `json:"held"`    // statements that hold
	Attacks       int       `json:"attacks"` // attempts that were denied; 0: none was made
	Broken        []Drift   `json:"broken"`
	Mended        []Drift   `json:"mended,omitempty"`  // what was broken at the last check
	Fenced        []string  `json:"fenced,omitempty"`  // agents that were fenced for it
	Problem       string    `json:"problem,omitempty"` // why nothing could be checked
}

// Drift is one thing that does not hold.
type Drift struct {
	Agent     string    `json:"agent"`
	Statement string    `json:"statement"` // of prove, or "attack ID"
	Detail    string    `json:"detail"`
	Since     time.Time `json:"since"`
}

// Checks sums up the checks since the warden began.
type Checks struct {
	SchemaVersion int       `json:"schemaVersion"`
	Team          string    `json:"team"`
	Messages      bool      `json:"messages"` // the team has an adapter
	Checks        uint64    `json:"checks"`
	Alerts        uint64    `json:"alerts"`
	Last          time.Time `json:"last"`
	Held          int       `json:"held"`
	Broken        []Drift   `json:"broken"`
	Fenced        []string  `json:"fenced"`
	// Heard is what agents' gateways told the warden, of those that told something.
	Heard []AgentHeard `json:"heard,omitempty"`
}

// AgentHeard is what one agent's gateway told.
type AgentHeard struct {
	Agent   string        `json:"agent"`
	Notices *Heard        `json:"notices,omitempty"`
	Outbox  *OutboxStatus `json:"outbox,omitempty"`
	Gaps    *Heard        `json:"gaps,omitempty"`
	Asking  *Asking       `json:"asking,omitempty"`
}
