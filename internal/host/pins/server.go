// Package pins is the warden's end of the pin protocol: it turns "this dialer
// wants name:port" into addresses that the kernel lets that dialer reach.
//
// The order is always the same: the peer's id is the dialer's; the guard finds
// the destination in the manifest; the manifest's own addresses or the
// resolver's answer are checked one by one; nftables takes them; only then is
// the answer sent. An answer of DNS that was good once serves again while DNS
// fails, and says how old it is.
package pins

import (
	"context"
	"net"
	"net/netip"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/host/nft"
)

// TTL is how long a pin lives by default.
const TTL = 60 * time.Second

// Table is the part of nft.Table that pins need.
type Table interface {
	Pin(account, destination string, addrs []netip.AddrPort, ttl time.Duration) error
	Unpin(account, destination string) error
	Pins(account string) []nft.Entry
}

// Lookuper is the part of resolver.Client that pins need.
type Lookuper interface {
	Lookup(ctx context.Context, name string) ([]netip.Addr, error)
	SetNames(names []string)
}

// Config is what a Server works with.
type Config struct {
	Table    Table
	Resolver Lookuper
	// Own lists the addresses of this host; nil reads them from the kernel.
	Own func() ([]netip.Addr, error)
	TTL time.Duration // zero: TTL
	// Denied hears of every refusal, from the connection's goroutine. Optional.
	Denied func(account string, r *deny.Reason)
}

// Server serves the pin sockets of all agents of a host.
type Server struct{ server }

// New starts nothing yet.
func New(cfg Config) *Server { return newServer(cfg) }

// Add serves one agent: ln (which the Server closes) is its PinSocket, dialer
// the only id that may connect to it. An account that is already served is
// replaced.
func (s *Server) Add(account string, dialer uint32, ln *net.UnixListener, p *dial.Policy) error {
	return s.add(account, dialer, ln, p)
}

// SetPolicy replaces an agent's policy while it runs. Pins and flows that the
// new one does not allow are taken from the kernel before it returns, and the
// dialer is told to forget them.
func (s *Server) SetPolicy(account string, p *dial.Policy) error { return s.setPolicy(account, p) }

// Remove stops serving an agent. Its rules are nft.Table's. Safe to repeat.
func (s *Server) Remove(account string) { s.remove(account) }

// Counters tells how often an agent was answered; an independent witness
// beside what its gateway says.
func (s *Server) Counters(account string) Counters { return s.counters(account) }

// Counters count pin requests of one agent since Add.
type Counters struct {
	Pinned uint64
	Denied uint64
	ByCode map[deny.Code]uint64
}

// Close stops serving and waits for every connection to end.
func (s *Server) Close() error { return s.close() }
