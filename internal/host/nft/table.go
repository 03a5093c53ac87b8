// Package nft keeps the one nftables table of Bulkhead, "inet bulkhead", in
// one network namespace: the kernel's half of layer 4.
//
// # What it keeps
//
// One base chain on the output hook judges every packet by the id that made
// its socket (meta skuid), also after that socket was passed to another
// process:
//
//   - a dialer's id goes to the chain of its agent. There a TCP packet with SYN
//     (also SYN+ACK, so that a passed socket turned into a listener gets
//     nowhere) must lead to a live pin, any other TCP packet to a known flow.
//     All else is counted and rejected.
//   - the resolver's id reaches port 53 of the host's own DNS servers.
//   - every other id of an agent (its account and its 65,536 subordinate ids)
//     is counted and rejected, loopback included.
//
// A pin is an (address, port) that may be connected to for some seconds. A
// flow is the same pair for as long as a connection may live: it is renewed by
// each pin, and taken away when the destination is revoked, which ends the
// connections to it at their next packet (docs/decisions/0005).
//
// # What it does not keep
//
// Packets without a socket (forwarded ones, and what the kernel sends for a
// closed socket) carry no id and are not judged. Agents have no route to
// anything that would forward. Names are not known here: the guard
// (internal/dial) maps names to addresses and checks what is said.
//
// # Concurrency and failure
//
// Every change is one netlink batch, so it happens whole or not at all. No
// other table is read or changed. All methods may be called concurrently.
package nft

import (
	"context"
	"net/netip"
	"time"

	"bulkhead/internal/layout"
)

// Name is the table's name, in family inet.
const Name = "bulkhead"

// FlowTimeout is how long after the last pin of a destination the packets of
// its established connections still pass. A stream that outlives it without
// any new connection to the same destination is cut.
const FlowTimeout = 24 * time.Hour

// Binding ties one agent's ids to its rules.
type Binding struct {
	Account string // names the chain and the sets
	IDs     layout.IDs
}

// Want is the complete desired state of the table.
type Want struct {
	Agents []Binding
	// Refused are further id ranges that get nothing: the block from which
	// dialers take their ids, so that one without an agent is refused too.
	Refused []Range
	// Resolver may be nil: then nobody may ask DNS.
	Resolver *Resolver
}

// Range is an inclusive range of host ids.
type Range struct{ First, Last uint32 }

// Resolver is the id that may ask DNS, and whom.
type Resolver struct {
	ID      uint32
	Servers []netip.Addr // of /etc/resolv.conf; port 53, UDP and TCP
}

// Entry is one live pin.
type Entry struct {
	Address      netip.AddrPort
	Destinations []string  // "name:port" as pinned; empty when the kernel's copy carries no comment
	Until        time.Time // new connections are refused after it
	FlowUntil    time.Time // packets of established ones are refused after it
}

// State is what the kernel has for one agent.
type State struct {
	InForce    bool     // exactly as wanted
	Difference []string // what is missing ("- …") or foreign ("+ …"), in words
	Pins       int      // live elements, both families
	Refused    uint64   // packets rejected by the agent's own chain
	Rules      int
}

// Table is the table in one network namespace.
type Table struct{ state }

// Option changes where the table lives.
type Option func(*options)

// InNamespace works in the network namespace that the descriptor refers to
// (decoys) instead of the calling process's. The descriptor must stay open
// until Close.
func InNamespace(fd int) Option { return func(o *options) { o.netns = fd } }

// Open connects to nftables. It changes nothing. It adopts pins that a former
// process left in the kernel, so that agents keep their connections.
func Open(opts ...Option) (*Table, error) { return open(opts) }

// Close closes the netlink sockets. The rules stay.
func (t *Table) Close() error { return t.close() }

// Apply makes the table exactly as wanted, in one atomic batch, whatever it
// was before, and keeps live pins of accounts that stay. It reads the result
// back and fails when that is not what was wanted.
func (t *Table) Apply(ctx context.Context, want Want) error { return t.apply(ctx, want) }

// Restore applies the last wanted state again, pins included.
func (t *Table) Restore(ctx context.Context) error { return t.restore(ctx) }

// Pin lets the account's dialer connect to addrs for ttl, and renews their
// flows. destination ("name:port") is kept with the element, so that a later
// policy can tell what it was for.
func (t *Table) Pin(account, destination string, addrs []netip.AddrPort, ttl time.Duration) error {
	return t.pin(account, destination, addrs, ttl)
}

// Unpin takes the destination from its addresses. An address that no other
// destination shares loses its pin and its flow, which ends the connections.
func (t *Table) Unpin(account, destination string) error { return t.unpin(account, destination) }

// Pins lists the account's live pins and flows.
func (t *Table) Pins(account string) []Entry { return t.pins(account) }

// Inspect reads the kernel's rules, sets and counters for one account and
// compares them with what was last applied.
func (t *Table) Inspect(account string) (State, error) { return t.inspect(account) }

// RemoveAgent takes an account out of the wanted state and out of the kernel.
// Safe to repeat.
func (t *Table) RemoveAgent(ctx context.Context, account string) error {
	return t.removeAgent(ctx, account)
}

// Destroy removes the table. Safe to repeat.
func (t *Table) Destroy() error { return t.destroy() }

// Watch calls changed, from one goroutine and never concurrently, after
// somebody else changed the table (a burst of changes gives one call), until
// ctx ends. Missed notifications count as a change. It returns once it is
// listening has ended; started is closed once it listens.
func (t *Table) Watch(ctx context.Context, started chan<- struct{}, changed func()) error {
	return t.watch(ctx, started, changed)
}
