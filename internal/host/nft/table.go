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
//   - a server's id (front) answers on connections that it accepted where it was
//     given a listening socket, and opens none.
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
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"bulkhead/internal/layout"
)

// Name is the table's name, in family inet.
const Name = "bulkhead"

// FlowTimeout is how long after the last pin of a destination the packets of
// its established connections still pass. A stream that outlives it without
// any new connection to the same destination is cut.
const FlowTimeout = 24 * time.Hour

// socketBuffer holds one acknowledgement per message of the largest batch: a
// thousand agents make some 20,000 messages, whose answers the kernel charges
// with about 800 bytes each. The memory is taken only while it is used.
const socketBuffer = 32 << 20

// Binding ties one agent's ids to its rules.
type Binding struct {
	Account string // names the chain and the sets
	IDs     layout.IDs
	// Fenced: its dialer leads nowhere. Every packet of it is refused, those of
	// connections that stand included; pins and flows are kept.
	Fenced bool
}

// Want is the complete desired state of the table.
type Want struct {
	Agents []Binding
	// Refused are further id ranges that get nothing: the block from which
	// dialers take their ids, so that one without an agent is refused too.
	Refused []Range
	// Resolver may be nil: then nobody may ask DNS.
	Resolver *Resolver
	// Servers answer on the connections that they accept, and get nothing else.
	Servers []Server
}

// Server is the id of a process that was given listening TCP sockets, and where
// they listen.
type Server struct {
	ID     uint32
	Listen []netip.AddrPort
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
type Table struct {
	conn *nftables.Conn
	raw  *netlink.Conn // the socket below conn, for what conn cannot read
	port uint32        // its netlink port id, to tell our own changes from others'

	mu      sync.Mutex // serialises changes; guards what follows
	want    Want
	rules   map[string][]rule // of want, by chain
	applied bool
	live    map[string]map[netip.AddrPort]*Entry
}

// Open connects to nftables. It changes nothing. It adopts pins that a former
// process left in the kernel, so that agents keep their connections.
func Open() (*Table, error) {
	t := &Table{live: map[string]map[netip.AddrPort]*Entry{}}
	conn, err := nftables.New(
		nftables.AsLasting(),
		nftables.WithSockOptions(
			func(c *netlink.Conn) error { return c.SetReadBuffer(socketBuffer) },
			func(c *netlink.Conn) error { return c.SetWriteBuffer(socketBuffer) },
			func(c *netlink.Conn) error { t.raw, t.port = c, c.PID(); return nil },
		),
	)
	if err != nil {
		return nil, fmt.Errorf("nft: open netlink (run as root, with nf_tables in the kernel): %w", err)
	}
	t.conn = conn
	if err := t.adopt(); err != nil {
		return nil, errors.Join(err, conn.CloseLasting())
	}
	return t, nil
}

// Close closes the netlink socket. The rules stay.
func (t *Table) Close() error { return t.conn.CloseLasting() }

// Apply makes the table exactly as wanted, in one atomic batch, whatever it
// was before, and keeps live pins of accounts that stay. It reads the result
// back and fails when that is not what was wanted.
func (t *Table) Apply(ctx context.Context, want Want) error {
	if err := want.check(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.applyLocked(ctx, want)
}

// Restore applies the last wanted state again, pins included. It does nothing
// before the first Apply.
func (t *Table) Restore(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.applied {
		return nil
	}
	return t.applyLocked(ctx, t.want)
}

func (t *Table) applyLocked(ctx context.Context, want Want) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, b := range want.Agents {
		keep[b.Account] = true
	}
	maps.DeleteFunc(t.live, func(account string, _ map[netip.AddrPort]*Entry) bool { return !keep[account] })
	t.expire(time.Now())
	t.queue(want)
	if err := t.conn.Flush(); err != nil {
		return fmt.Errorf("nft: load table %s for %d agents: %w", Name, len(want.Agents), err)
	}
	t.want, t.rules, t.applied = want, map[string][]rule{}, true
	for _, r := range want.rules() {
		t.rules[r.chain] = append(t.rules[r.chain], r)
	}
	diff, err := t.compareBase()
	if err != nil {
		return err
	}
	for _, b := range want.Agents {
		s, err := t.inspectLocked(b)
		if err != nil {
			return err
		}
		diff = append(diff, s.Difference...)
	}
	if n := len(diff); n > 0 {
		return fmt.Errorf("nft: the kernel does not hold what was loaded, %d differences, the first: %v", n, diff[:min(n, 4)])
	}
	return nil
}

// RemoveAgent takes an account out of the wanted state and out of the kernel.
// Safe to repeat.
func (t *Table) RemoveAgent(ctx context.Context, account string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	want := t.want
	want.Agents = slices.DeleteFunc(slices.Clone(want.Agents), func(b Binding) bool { return b.Account == account })
	if !t.applied || len(want.Agents) == len(t.want.Agents) {
		return nil
	}
	return t.applyLocked(ctx, want)
}

// Destroy removes the table. Safe to repeat.
func (t *Table) Destroy() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.applied, t.want, t.rules = false, Want{}, nil
	clear(t.live)
	table := newTable()
	t.conn.AddTable(table) // so that the deletion cannot miss
	t.conn.DelTable(table)
	if err := t.conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("nft: remove table %s: %w", Name, err)
	}
	return nil
}

// check refuses a state in which one id would be judged by two agents' rules.
func (w Want) check() error {
	seen := map[string]bool{}
	for i, a := range w.Agents {
		if a.Account == "" || len(a.Account) > layout.MaxAccountName || seen[a.Account] {
			return fmt.Errorf("nft: account %q is empty, too long or listed twice", a.Account)
		}
		seen[a.Account] = true
		if a.Account == baseChain || a.Account == resolverChain || a.Account == serversChain {
			return fmt.Errorf("nft: account %q has the name of a chain of ours", a.Account)
		}
		if a.IDs.Account == 0 || a.IDs.Base == 0 || a.IDs.Dialer == 0 || a.IDs.Last() < a.IDs.Base {
			return fmt.Errorf("nft: account %q has no complete ids (%s)", a.Account, a.IDs)
		}
		for _, b := range w.Agents[:i] {
			if a.IDs.Overlaps(b.IDs) {
				return fmt.Errorf("nft: ids of %q (%s) and %q (%s) overlap", a.Account, a.IDs, b.Account, b.IDs)
			}
		}
		for _, s := range w.Servers {
			if s.ID == 0 || s.ID == a.IDs.Account || s.ID == a.IDs.Dialer || (Range{a.IDs.Base, a.IDs.Last()}).has(s.ID) || w.Resolver != nil && s.ID == w.Resolver.ID {
				return fmt.Errorf("nft: the server's id %d is root's, the resolver's, or one of %q (%s)", s.ID, a.Account, a.IDs)
			}
		}
		if w.Resolver != nil && (Range{a.IDs.Base, a.IDs.Last()}.has(w.Resolver.ID) || a.IDs.Account == w.Resolver.ID || a.IDs.Dialer == w.Resolver.ID) {
			return fmt.Errorf("nft: the resolver's id %d is one of %q (%s)", w.Resolver.ID, a.Account, a.IDs)
		}
	}
	for _, r := range w.Refused {
		if r.First == 0 || r.Last < r.First {
			return fmt.Errorf("nft: range %d-%d to refuse is empty or holds root", r.First, r.Last)
		}
	}
	return nil
}

func (r Range) has(id uint32) bool { return id >= r.First && id <= r.Last }
