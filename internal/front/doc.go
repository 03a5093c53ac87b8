// Package front lets programs of this host in that are no agents: over HTTP on
// a loopback address, each with a token of control.
//
// # What it holds
//
// Nothing of an agent: the public keys of tokens, the secrets of agents that
// have HS256 tokens (whoever has one can speak as that one agent, so gateways
// do not get them), and which tokens are revoked. Its account owns no file that
// is not its own and its cell has no network: the listening sockets were made
// by the warden and passed in, and nftables let its id answer on what it
// accepts and nothing else.
//
// # The way of a request
//
// The token is checked: exactly one Authorization header, a team that listens
// at this address. Then it is passed on, with the token, to that agent's
// gateway, which checks it again and is the one that decides. Connections to a
// gateway are pairs of unix sockets, of which the gateway is passed one end over
// a connection that it made itself and proved itself on (internal/hub).
//
// # What is not passed on
//
// Go's own server and transport read and write each request anew, so that
// nothing that two of them could read differently gets through. Upgrades,
// CONNECT, trailers, hop-by-hop headers and everything that says where a
// request came from are left out or refused.
//
// # Limits
//
// Connections of each address, requests of each agent, the size of headers and
// bodies, and the time of everything are bounded.
package front
