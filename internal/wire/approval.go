package wire

import "time"

// Approvals and grants of tool calls (docs/contracts/approvals.md). They are kept by
// the agent's gateway. The warden passes what an operator asks on to it over
// layout.Agent.GrantsSocket, under the same verbs and with the operator's id.
const (
	// VerbApprovals lists the calls that wait: [ApprovalsRequest] -> [ApprovalsResult];
	// towards a gateway -> VerbOK with [AgentApprovals].
	VerbApprovals = "approvals"
	// VerbDecide approves or denies one of them: [DecideRequest] -> [DecideResult].
	VerbDecide = "decide"
	// VerbPermits lists the grants of tool calls: [AgentRequest] -> [PermitsResult];
	// towards a gateway -> VerbOK with [AgentPermits].
	VerbPermits = "permits"
	// VerbRevokePermit ends one of them: [RevokePermitRequest] -> [PermitsResult];
	// towards a gateway -> VerbOK with [AgentPermits].
	VerbRevokePermit = "revoke-permit"
	// VerbExecutions lists executions: [ExecutionsRequest] -> [ExecutionsResult];
	// towards a gateway -> VerbOK with [AgentExecutions].
	VerbExecutions = "executions"
	// VerbExecution pauses, resumes or cancels one: [ExecutionRequest] ->
	// [ExecutionsResult] with those that have not ended; towards a gateway -> VerbOK
	// with [AgentExecutions].
	VerbExecution = "execution"
)

// Approval is a call that waits for a person. What its input holds was written by the
// agent.
type Approval struct {
	ID     string    `json:"id"` // of the execution
	Tool   string    `json:"tool"`
	Step   int       `json:"step"`            // from 1
	Steps  int       `json:"steps"`           // 1: a call by itself
	Scope  string    `json:"scope,omitempty"` // the destination that a grant can be bound to; empty: it says exact or wide
	Token  string    `json:"token,omitempty"` // with which it was asked; empty: by the agent itself
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`            // nobody having decided, it is not done
	Paused bool      `json:"paused,omitempty"` // it is not done before it is resumed
	Digest string    `json:"digest"`
	Given  []Given   `json:"given"`
}

// Given is one field of an input, as a person is shown it.
type Given struct {
	Name  string `json:"name"`
	Form  string `json:"form"`  // text, json, base64 (bytes that are no text)
	Text  string `json:"text"`  // at most as much as was asked for
	Bytes int64  `json:"bytes"` // of the whole; with base64, of what it stands for
	Cut   bool   `json:"cut,omitempty"`
}

// ApprovalsRequest asks what waits. With an ID, for that one, and more of its input.
type ApprovalsRequest struct {
	Team   string   `json:"team"`
	Agents []string `json:"agents,omitempty"` // empty: all that ask
	ID     string   `json:"id,omitempty"`
}

// AgentApprovals is what waits of one agent, the oldest first.
type AgentApprovals struct {
	Agent     string     `json:"agent"`
	Approvals []Approval `json:"approvals"`
	// Problem says why the agent's gateway did not answer.
	Problem string `json:"problem,omitempty"`
}

// ApprovalsResult is what waits.
type ApprovalsResult struct {
	SchemaVersion int              `json:"schemaVersion"`
	Team          string           `json:"team"`
	Agents        []AgentApprovals `json:"agents"`
}

// How long an approval goes on.
const (
	PermitOnce    = "once"    // for this call alone
	PermitSession = "session" // until the runtime, or its gateway, is started anew
	PermitFor     = "for"     // for a time
	PermitAlways  = "always"  // until it is revoked
)

// DecideRequest is a person's word about a call that waits.
type DecideRequest struct {
	Team    string        `json:"team"`
	Agent   string        `json:"agent"`
	ID      string        `json:"id"`
	Approve bool          `json:"approve"`
	Kind    string        `json:"kind,omitempty"`   // of an approval; empty: once
	For     time.Duration `json:"for,omitempty"`    // with PermitFor; nanoseconds
	Exact   bool          `json:"exact,omitempty"`  // the grant covers this very input alone
	Wide    bool          `json:"wide,omitempty"`   // it is not bound to the input's destination
	Reason  string        `json:"reason,omitempty"` // of a denial; the agent is told it
	By      uint32        `json:"by"`               // the operator's user id; set by the warden
}

// DecideResult says what became of it.
type DecideResult struct {
	SchemaVersion int     `json:"schemaVersion"`
	Team          string  `json:"team"`
	Agent         string  `json:"agent"`
	ID            string  `json:"id"`
	Tool          string  `json:"tool"`
	Approved      bool    `json:"approved"`
	State         string  `json:"state"`           // of the execution
	Grant         *Permit `json:"grant,omitempty"` // beyond this call
}

// Permit is a grant of tool calls that was given with an approval.
type Permit struct {
	ID        string    `json:"id"`
	Tool      string    `json:"tool"`
	Scope     string    `json:"scope,omitempty"`  // calls to this destination alone
	Digest    string    `json:"digest,omitempty"` // calls with this very input alone
	Token     string    `json:"token,omitempty"`  // of the caller that it covers; empty: the agent itself
	Kind      string    `json:"kind"`
	Until     time.Time `json:"until,omitzero"`
	At        time.Time `json:"at"`
	By        uint32    `json:"by"`
	Execution string    `json:"execution"` // with whose approval it was given
	Uses      int64     `json:"uses"`      // since the gateway began
}

// AgentPermits are the grants of one agent that are not over.
type AgentPermits struct {
	Agent   string   `json:"agent"`
	Grants  []Permit `json:"grants"`
	Problem string   `json:"problem,omitempty"`
}

// PermitsResult lists grants of tool calls.
type PermitsResult struct {
	SchemaVersion int            `json:"schemaVersion"`
	Team          string         `json:"team"`
	Agents        []AgentPermits `json:"agents"`
}

// RevokePermitRequest ends a grant: calls that begin afterwards wait again.
type RevokePermitRequest struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
	ID    string `json:"id"`
	By    uint32 `json:"by"` // set by the warden
}

// Asking is how much of an agent waits for a person, as its gateway says.
type Asking struct {
	Waiting int       `json:"waiting"`
	Since   time.Time `json:"since,omitzero"` // of the oldest
}

// What an operator does to an execution.
const (
	ExecutionPause  = "pause"  // the agent cannot resume it then
	ExecutionResume = "resume" // whoever paused it
	ExecutionCancel = "cancel"
)

// ExecutionsRequest asks for executions.
type ExecutionsRequest struct {
	Team   string   `json:"team"`
	Agents []string `json:"agents,omitempty"` // empty: all that have any
	All    bool     `json:"all,omitempty"`    // those that ended, too
}

// ExecutionRequest is what an operator wants done to one.
type ExecutionRequest struct {
	Team   string `json:"team"`
	Agent  string `json:"agent"`
	ID     string `json:"id"`
	Action string `json:"action"`
	By     uint32 `json:"by"` // set by the warden
}

// Execution is calls of an agent that are done one after the other.
type Execution struct {
	ID      string          `json:"id"`
	State   string          `json:"state"`
	Token   string          `json:"token,omitempty"` // of who asked for it; empty: the agent itself
	Created time.Time       `json:"created"`
	Changed time.Time       `json:"changed"`
	Detail  string          `json:"detail,omitempty"`
	Steps   []ExecutionStep `json:"steps"`
}

// ExecutionStep is one of them.
type ExecutionStep struct {
	Step  int    `json:"step"` // from 1
	Tool  string `json:"tool"`
	State string `json:"state"`
	Why   string `json:"why,omitempty"` // it was not done
}

// AgentExecutions are those of one agent, the newest first.
type AgentExecutions struct {
	Agent      string      `json:"agent"`
	Executions []Execution `json:"executions"`
	Problem    string      `json:"problem,omitempty"`
}

// ExecutionsResult lists executions.
type ExecutionsResult struct {
	SchemaVersion int               `json:"schemaVersion"`
	Team          string            `json:"team"`
	Agents        []AgentExecutions `json:"agents"`
}
