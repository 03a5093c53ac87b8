// Package protocol is what is said to front: its config, what the warden tells
// it, and what it says to gateways. It is a package of its own so that the
// warden, which runs as root, links no HTTP server.
package protocol

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
	// Certificate and Key are PEM; empty: no TLS.
	Certificate []byte `json:"certificate,omitempty"`
	Key         []byte `json:"key,omitempty"`
}
