// Package gateway is the one process that stands between an agent's runtime
// and everything else.
//
// `bulkhead-serve gateway` finds the listening socket of
// layout.Agent.GatewaySocket on descriptor 3 and its [Config] as JSON on
// descriptor 4. It binds and listens nowhere itself: the runtime's loopback
// listeners reach it through the gateway protocol (wire.VerbListen). Records
// (record.Record, one JSON line each) go to standard output, faults to
// standard error.
package gateway

import (
	"net/netip"

	"bulkhead/internal/team"
)

// Config is what a gateway is told at its start, as JSON on descriptor 4.
type Config struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
	Token string `json:"token"` // the runtime's token; at least 16 characters
	// RuntimeID is the id, as the gateway sees it, of the runtime. Zero:
	// layout.RuntimeID. The overflow id 65534 is refused whatever this says.
	RuntimeID uint32 `json:"runtimeID,omitempty"`
	// Egress and Hosts are the agent's, from the manifest.
	Egress []team.Destination      `json:"egress"`
	Hosts  map[string][]netip.Addr `json:"hosts,omitempty"`
	// DialerSocket is the path, as the gateway sees it, of
	// layout.Agent.DialerSocket.
	DialerSocket string `json:"dialerSocket"`
	// MaxConnections bounds concurrent connections of the runtime; zero: 512.
	MaxConnections int `json:"maxConnections,omitempty"`
}
