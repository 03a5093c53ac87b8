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
	"bulkhead/internal/dial"
	"bulkhead/internal/gateway/gatewayconfig"
	"bulkhead/internal/team"
)

// Config is what a gateway is told at its start, as JSON on descriptor 4.
type Config = gatewayconfig.Config

func policy(c *Config) *dial.Policy {
	return dial.NewPolicy(&team.Agent{Name: c.Agent, Egress: c.Egress, Hosts: c.Hosts})
}
