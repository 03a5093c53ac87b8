package wire

import "encoding/json"

// Verbs of the warden protocol towards the host's own servers.
const (
	// VerbTokens is passed on to control: [TokensRequest] -> the body of control's
	// own answer (internal/control/protocol).
	VerbTokens = "tokens"
	// VerbAudit is passed on to audit: [AuditRequest] -> the body of audit's own
	// answer (internal/audit/protocol).
	VerbAudit = "audit"
)

// TokensRequest is one request of an operator to control. Body is that of
// control's verb.
type TokensRequest struct {
	Verb string          `json:"verb"`
	Body json.RawMessage `json:"body"`
}

// AuditRequest is one request of an operator to audit.
type AuditRequest struct {
	Verb string          `json:"verb"`
	Body json.RawMessage `json:"body"`
}
