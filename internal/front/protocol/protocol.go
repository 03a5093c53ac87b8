// Package protocol is what is said to front: its config, what the warden tells
// it, and what it says to gateways. It is a package of its own so that the
// warden, which runs as root, links no HTTP server.
package protocol

import (
	"encoding/json"
	"time"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/deny"
)

// What gateways greet front with. After auth (internal/hub) front speaks and
// the gateway listens: each [VerbConnection] passes one end of a connected pair
// of unix stream sockets, which then carries HTTP/1.1 until either side closes
// it.
const (
	Name    = "front"
	Version = 1

	VerbConnection = "connection" // struct{} with one descriptor; no answer
)

// VerbTrust, on the operator's socket, says what to trust of tokens: token.Trust
// as control gave it.
const VerbTrust = "trust"

// Config is what front is told at its start. Its listening TCP sockets come
// after root's, in the order of Listeners.
type Config struct {
	Listeners []Listener `json:"listeners"`
}

// Listener is one address and whose tokens are taken there.
type Listener struct {
	Address string   `json:"address"`
	Teams   []string `json:"teams"`
	// Guests are those of Teams for which agents may be made, and that they may
	// wake.
	Guests []Guests `json:"guests,omitempty"`
	// Certificate and Key are PEM; empty: no TLS.
	Certificate []byte `json:"certificate,omitempty"`
	Key         []byte `json:"key,omitempty"`
}

// Guests is a team whose agents may be made here, and the hash of the token
// that whoever makes them shows.
type Guests struct {
	Team  string          `json:"team"`
	Token admintoken.Hash `json:"token"`
}

// Front asks nobody: the warden, which alone can wake and make agents, waits for
// what there is to do.
const (
	VerbWork   = "work"   // [WorkRequest] -> [Work], once there is something, or after the time
	VerbWoken  = "woken"  // [Woken] -> struct{}
	VerbAnswer = "answer" // [AdminAnswer] -> struct{}
	VerbRest   = "rest"   // [Rest] -> [Rested]
)

// WorkRequest asks for work. Each warden that runs has a session of its own:
// what a former one took along to its end is given again.
type WorkRequest struct {
	Session string        `json:"session"`
	Wait    time.Duration `json:"wait"`
}

// Work is what the warden should do. Each piece is given once in a session.
type Work struct {
	Wake  []Agent        `json:"wake,omitempty"` // somebody with a good token for it waits
	Admin []AdminRequest `json:"admin,omitempty"`
}

// Agent names one.
type Agent struct {
	Team string `json:"team"`
	Name string `json:"name"`
}

// Woken says that an agent cannot be woken, and why; without a reason, that it
// was awake, though front may have been told otherwise by a warden before.
// That one woke front sees by its gateway.
type Woken struct {
	Agent
	Reason *deny.Reason `json:"reason,omitempty"`
}

// AdminRequest is a request to /admin/agents whose token was right.
type AdminRequest struct {
	ID     uint64   `json:"id"`
	Teams  []string `json:"teams"` // whose guests may be made at that address
	Token  string   `json:"token"`
	Method string   `json:"method"`         // POST, GET, DELETE
	Name   string   `json:"name,omitempty"` // of the path
	Key    string   `json:"key,omitempty"`  // Idempotency-Key
	Body   []byte   `json:"body,omitempty"`
}

// AdminAnswer is what the caller gets: a refusal, or a status and JSON.
type AdminAnswer struct {
	ID     uint64          `json:"id"`
	Reason *deny.Reason    `json:"reason,omitempty"`
	Status int             `json:"status,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
}

// Rest asks which of some agents nobody has called for at least Idle and nobody
// is calling, longest first, at most Most. Front passes nothing on to them from
// then on: who calls them has them woken.
type Rest struct {
	Agents []Agent       `json:"agents"`
	Idle   time.Duration `json:"idle"`
	Most   int           `json:"most"`
}

// Rested are those that the warden may stop.
type Rested struct {
	Agents []Agent `json:"agents"`
}
