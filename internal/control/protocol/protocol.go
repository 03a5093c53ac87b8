// Package protocol is what the warden says to control: its config and the verbs
// on its socket (internal/hub). It is a package of its own so that the warden,
// which runs as root, links no code that parses or signs tokens: what is
// trusted it passes on unread.
package protocol

import (
	"encoding/json"
	"time"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/deny"
	"bulkhead/internal/team"
)

// Config is what control is told at its start.
type Config struct {
	Data   string  `json:"data"`             // the path of its folder, as it sees it
	Admins []Admin `json:"admins,omitempty"` // teams for which agents may be made
}

// Admin is such a team: who may make them, and the ceiling of what they get.
type Admin struct {
	Team    string          `json:"team"`
	Token   admintoken.Hash `json:"token"`
	Ceiling *team.Guests    `json:"ceiling"`
}

// Verbs.
const (
	VerbIssue  = "issue"  // [Issue] -> [Issued]
	VerbList   = "list"   // [List] -> [Tokens]
	VerbRevoke = "revoke" // [Revoke] -> [Revoked]
	VerbRotate = "rotate" // [Rotate] -> [Rotated]
	VerbTrust  = "trust"  // [TrustRequest] -> [Trusts]
	VerbAdmin  = "admin"  // [AdminAsk] -> [AdminOrder]
)

// Issue asks for a token.
type Issue struct {
	Team    string        `json:"team"`
	Agent   string        `json:"agent"`
	Domains *[]string     `json:"domains,omitempty"` // nil: the manifest alone decides
	Rate    int           `json:"ratePerMinute,omitempty"`
	Storage int64         `json:"storageBytes,omitempty"`
	Memory  int64         `json:"memoryBytes,omitempty"`
	For     time.Duration `json:"for,omitempty"` // nanoseconds; 0: 30 days
	Alg     string        `json:"alg,omitempty"` // EdDSA (default), RS256, HS256
	By      uint32        `json:"by"`            // the operator's user id; the warden writes it
}

// Issued is a token. It is shown to the operator and kept nowhere.
type Issued struct {
	SchemaVersion int       `json:"schemaVersion"`
	Token         string    `json:"token"`
	ID            string    `json:"id"`
	Team          string    `json:"team"`
	Agent         string    `json:"agent"`
	Alg           string    `json:"alg"`
	Expires       time.Time `json:"expires"`
	// Waiting are gateways that could not be told: they take the token once they
	// are. The warden writes it.
	Waiting []string `json:"waiting,omitempty"`
}

// List selects tokens; empty fields select all.
type List struct {
	Team  string `json:"team,omitempty"`
	Agent string `json:"agent,omitempty"`
	All   bool   `json:"all,omitempty"` // revoked ones too
}

// Tokens are those that have not expired.
type Tokens struct {
	SchemaVersion int     `json:"schemaVersion"`
	Epoch         uint64  `json:"epoch"`
	Tokens        []Token `json:"tokens"`
}

// Token is what is kept of an issued one: never the token itself.
type Token struct {
	ID      string     `json:"id"`
	Team    string     `json:"team"`
	Agent   string     `json:"agent"`
	Key     string     `json:"key"`
	Alg     string     `json:"alg"`
	Issued  time.Time  `json:"issued"`
	Expires time.Time  `json:"expires"`
	Revoked *time.Time `json:"revoked,omitempty"`
	Domains *[]string  `json:"domains,omitempty"`
	Rate    int        `json:"ratePerMinute,omitempty"`
	Storage int64      `json:"storageBytes,omitempty"`
	Memory  int64      `json:"memoryBytes,omitempty"`
	By      uint32     `json:"by"`
}

// Revoke ends tokens: the one with this id, or all of an agent's.
type Revoke struct {
	ID    string `json:"id,omitempty"`
	Team  string `json:"team,omitempty"`
	Agent string `json:"agent,omitempty"`
}

// Revoked says which tokens are revoked as of an epoch.
type Revoked struct {
	SchemaVersion int      `json:"schemaVersion"`
	IDs           []string `json:"ids"`
	Epoch         uint64   `json:"epoch"`
	// Waiting are gateways that could not be told. They refuse every token before
	// long, until they are. The warden writes it.
	Waiting []string `json:"waiting,omitempty"`
}

// Rotate makes new signing keys.
type Rotate struct {
	// Overlap is how long tokens of the former keys are still taken; 0: not at
	// all.
	Overlap time.Duration `json:"overlap"`
}

// Rotated says which keys sign now.
type Rotated struct {
	SchemaVersion int      `json:"schemaVersion"`
	Keys          []string `json:"keys"`
	Former        []string `json:"former"`
	// Until is when tokens of the former keys end.
	Until   time.Time `json:"until"`
	Epoch   uint64    `json:"epoch"`
	Waiting []string  `json:"waiting,omitempty"` // as in [Revoked]
}

// TrustRequest asks what verifiers should trust.
type TrustRequest struct {
	Gateways []Gateway `json:"gateways"`
}

// Gateway is one agent's.
type Gateway struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
}

// Trusts are what each is told (token.Trust as JSON), of one epoch. The warden
// passes them on as they are. Front's may hold secrets.
type Trusts struct {
	Epoch    uint64            `json:"epoch"`
	Front    json.RawMessage   `json:"front"`
	Gateways []json.RawMessage `json:"gateways"` // in the order of the request
}

// AdminAsk is a request to /admin/agents of front, as front passed it on.
type AdminAsk struct {
	Teams  []string `json:"teams"` // whose guests may be made at that address
	Token  string   `json:"token"`
	Method string   `json:"method"`
	Name   string   `json:"name,omitempty"` // of the path
	Body   []byte   `json:"body,omitempty"`
}

// What an [AdminOrder] has the warden do.
const (
	DoMake   = "make"
	DoList   = "list"
	DoDelete = "delete"
)

// AdminOrder is what control decided: a refusal, or what the warden is to do,
// which holds the guest against the manifest's ceiling once more.
type AdminOrder struct {
	Reason *deny.Reason `json:"reason,omitempty"`
	Do     string       `json:"do,omitempty"`
	Team   string       `json:"team,omitempty"`
	Name   string       `json:"name,omitempty"`
	Guest  *team.Guest  `json:"guest,omitempty"`
}
