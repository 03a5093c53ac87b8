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
// # Temporary destinations
//
// The warden, and nobody else, changes what is allowed while the gateway runs:
// over the socket of layout.Agent.GrantsSocket, which lies in a folder of
// root's that no container sees (wire.GrantsProtocol). Each carries its own
// end, which holds without a warden. They are reached through the proxy only:
// the runtime's hosts file and listeners are those of the manifest.
//
// # What is taken
//
// A descriptor is served only when the kernel says that it is a listening TCP
// stream socket. Nothing can be said about where it listens that would matter:
// its connections reach listed destinations only, wherever they come from.
package gateway

import "bulkhead/internal/gateway/gatewayconfig"

// Config is what a gateway is told at its start, as JSON on descriptor 4.
type Config = gatewayconfig.Config
