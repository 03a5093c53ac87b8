// Package gateway is the one process that stands between an agent's runtime
// and everything else.
//
// `bulkhead-serve gateway` finds the listening socket of
// layout.Agent.GatewaySocket on descriptor 3 and its [Config] as JSON on
// descriptor 4. It binds and listens nowhere itself: the runtime's loopback
// listeners reach it through the gateway protocol (wire.VerbListen). Records
// (record.Record, one JSON line each) go to standard output, faults to
// standard error.
//
// # Who may speak
//
// The peer's id must be the runtime's, as the kernel tells it, AND the token
// must be right. The id alone would do against other agents; the token also
// keeps out processes of the runtime's id that were not given it.
//
// # What is taken
//
// A descriptor is served only when the kernel says that it is a listening TCP
// stream socket. Nothing can be said about where it listens that would matter:
// its connections reach listed destinations only, wherever they come from.
package gateway

import (
	"errors"
	"fmt"
	"net/netip"

	"bulkhead/internal/dial"
	"bulkhead/internal/identity"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// minToken is the shortest token that is taken: 128 bits as base64.
const minToken = 22

// Config is what a gateway is told at its start, as JSON on descriptor 4.
type Config struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
	Token string `json:"token"` // the runtime's token; at least 22 characters
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

// check fills defaults and refuses what would be weak.
func (c *Config) check() error {
	if c.RuntimeID == 0 {
		c.RuntimeID = layout.RuntimeID
	}
	switch {
	case c.Team == "" || c.Agent == "" || c.DialerSocket == "":
		return errors.New("gateway: the config must give team, agent and dialerSocket")
	case len(c.Token) < minToken:
		return fmt.Errorf("gateway: the token is shorter than %d characters", minToken)
	case c.RuntimeID == identity.Overflow:
		return errors.New("gateway: runtimeID is the overflow id, which stands for anybody")
	}
	return nil
}

func (c *Config) policy() *dial.Policy {
	return dial.NewPolicy(&team.Agent{Name: c.Agent, Egress: c.Egress, Hosts: c.Hosts})
}
