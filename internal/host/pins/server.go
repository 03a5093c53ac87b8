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
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/identity"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// TTL is how long a pin lives by default.
const TTL = 60 * time.Second

// Limits of one agent. A dialer is expected to have one connection; a second
// and third cover the moment of its restart.
const (
	maxConnections = 4
	maxInFlight    = 32
	tellPatience   = time.Second // with a dialer that does not read
)

// Table is the part of nft.Table that pins need.
type Table interface {
	PinFor(account, destination string, addrs []netip.AddrPort, ttl, flow time.Duration) error
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
	// Authorization gives the value of Proxy-Authorization from the credentials
	// of an upstream proxy, read now; empty: there are none. nil takes no proxy
	// that has some.
	Authorization func(*team.Upstream) (string, error)
	// Denied hears of every refusal, from the connection's goroutine. Optional.
	Denied func(account string, r *deny.Reason)
	// Spent hears that a grant for one connection was used up, from the
	// connection's goroutine and before the dialer is answered. Optional.
	Spent func(account string, g wire.Grant)
}

// Server serves the pin sockets of all agents of a host.
type Server struct {
	cfg   Config
	cache *cache

	mu     sync.Mutex // guards agents; never held while something blocks
	agents map[string]*agent
}

// Counters count pin requests of one agent since Add.
type Counters struct {
	Pinned uint64
	Denied uint64
	ByCode map[deny.Code]uint64
}

// agent is one served account.
type agent struct {
	account string
	dialer  uint32
	ln      *net.UnixListener
	cancel  context.CancelFunc
	work    sync.WaitGroup

	policyMu sync.RWMutex // held for reading from check to pin, so that SetPolicy meets no pin in between
	policy   atomic.Pointer[dial.Policy]

	mu       sync.Mutex // guards what follows
	conns    map[*wire.Conn]bool
	counters Counters
	spent    map[spending]bool
	ended    map[wire.DialRequest]bool // temporary destinations behind a proxy that were taken back
}

// spending names one grant for one connection.
type spending struct {
	target string
	at     int64
}

// New starts nothing yet.
func New(cfg Config) *Server {
	if cfg.TTL == 0 {
		cfg.TTL = TTL
	}
	if cfg.Own == nil {
		cfg.Own = ownAddresses
	}
	return &Server{cfg: cfg, cache: newCache(cfg.Resolver, cfg.TTL), agents: map[string]*agent{}}
}

// Add serves one agent: ln (which the Server closes) is its PinSocket, dialer
// the only id that may connect to it. An account that is already served is
// replaced. Pins that a former process left and p does not allow are revoked.
func (s *Server) Add(account string, dialer uint32, ln *net.UnixListener, p *dial.Policy) error {
	s.Remove(account)
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{
		account: account, dialer: dialer, ln: ln, cancel: cancel,
		conns: map[*wire.Conn]bool{}, spent: map[spending]bool{}, ended: map[wire.DialRequest]bool{}, counters: Counters{ByCode: map[deny.Code]uint64{}},
	}
	a.policy.Store(p)
	s.mu.Lock()
	s.agents[account] = a
	s.mu.Unlock()
	s.tellNames()
	err := s.revoke(a)
	a.work.Go(func() { s.accept(ctx, a) })
	return err
}

// SetPolicy replaces an agent's policy while it runs. Pins and flows that the
// new one does not allow are taken from the kernel before it returns, and the
// dialer is told to forget them.
func (s *Server) SetPolicy(account string, p *dial.Policy) error {
	s.mu.Lock()
	a := s.agents[account]
	s.mu.Unlock()
	if a == nil {
		return fmt.Errorf("pins: %s is not served", account)
	}
	a.policyMu.Lock()
	defer a.policyMu.Unlock()
	old := a.policy.Swap(p)
	s.tellNames()
	a.endBehind(old, p)
	return s.revoke(a)
}

// revoke takes every pin that the policy does not allow from the kernel. The
// caller makes sure that no new one comes in between.
func (s *Server) revoke(a *agent) error {
	policy := a.policy.Load()
	for _, e := range s.cfg.Table.Pins(a.account) {
		gone := e.Destinations
		if len(gone) == 0 {
			gone = []string{""} // nobody knows what it was for: closed
		}
		for _, destination := range gone {
			if proxy, ok := strings.CutPrefix(destination, behindPrefix); ok && policy.Behind(proxy) {
				continue
			}
			host, port, err := splitDestination(destination)
			if err == nil {
				// Addresses the manifest itself fixes may have changed, too.
				if d, ok := policy.Keeps(host, port); ok && policy.Upstream(host, d) == nil {
					fixed, ok := policy.Fixed(host, d)
					if !ok || slices.Contains(fixed, e.Address.Addr()) {
						continue
					}
				}
			}
			if err := s.cfg.Table.Unpin(a.account, destination); err != nil {
				return fmt.Errorf("pins: revoke %s of %s: %w", destination, a.account, err)
			}
			if err == nil {
				a.tell(wire.DialRequest{Host: host, Port: port})
			}
		}
	}
	return nil
}

// Remove stops serving an agent. Its rules are nft.Table's. Safe to repeat.
func (s *Server) Remove(account string) {
	s.mu.Lock()
	a := s.agents[account]
	delete(s.agents, account)
	s.mu.Unlock()
	if a != nil {
		a.stop()
		s.tellNames()
	}
}

// Counters tells how often an agent was answered; an independent witness
// beside what its gateway says.
func (s *Server) Counters(account string) Counters {
	s.mu.Lock()
	a := s.agents[account]
	s.mu.Unlock()
	if a == nil {
		return Counters{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.counters
	c.ByCode = maps.Clone(c.ByCode)
	return c
}

// Close stops serving and waits for every connection to end.
func (s *Server) Close() error {
	s.mu.Lock()
	agents := slices.Collect(maps.Values(s.agents))
	clear(s.agents)
	s.mu.Unlock()
	for _, a := range agents {
		a.stop()
	}
	return nil
}

// tellNames gives the resolver the names of all agents.
func (s *Server) tellNames() {
	s.mu.Lock()
	var names []string
	for _, a := range s.agents {
		names = append(names, a.policy.Load().Names()...)
	}
	s.mu.Unlock()
	slices.Sort(names)
	s.cfg.Resolver.SetNames(slices.Compact(names))
}

func (a *agent) stop() {
	a.cancel()
	_ = a.ln.Close()
	a.mu.Lock()
	for c := range a.conns {
		_ = c.Close()
	}
	a.mu.Unlock()
	a.work.Wait()
}

// tell sends VerbUnpin to whoever is connected as the dialer.
func (a *agent) tell(what wire.DialRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.conns {
		_ = c.Unix().SetWriteDeadline(time.Now().Add(tellPatience))
		err := c.Send(0, wire.VerbUnpin, what)
		if err == nil { // or no later answer could be sent
			err = c.Unix().SetWriteDeadline(time.Time{})
		}
		if err != nil {
			_ = c.Close() // it will come back and has to ask again
		}
	}
}

func (s *Server) accept(ctx context.Context, a *agent) {
	for {
		c, err := a.ln.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || !temporary(err) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		a.work.Go(func() { s.serve(ctx, a, wire.New(c)) })
	}
}

func (s *Server) serve(ctx context.Context, a *agent, c *wire.Conn) {
	defer func() { _ = c.Close() }()
	peer, err := identity.PeerOf(c.Unix())
	if err != nil || peer.UID != a.dialer || peer.UID == identity.Overflow {
		s.count(a, &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.BadPeer, What: fmt.Sprintf("pin socket of %s", a.account),
			Why: fmt.Sprintf("id %d connected, not the dialer %d", peer.UID, a.dialer), Mend: "nothing: only the dialer may ask for pins",
		})
		return
	}
	a.mu.Lock()
	full := len(a.conns) >= maxConnections || ctx.Err() != nil
	if !full {
		a.conns[c] = true
	}
	ended := slices.Collect(maps.Keys(a.ended))
	a.mu.Unlock()
	if full {
		return
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer func() {
		a.mu.Lock()
		delete(a.conns, c)
		a.mu.Unlock()
	}()
	if _, err := c.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		return
	}
	for _, what := range ended { // it may have been away when they were taken back
		if c.Send(0, wire.VerbUnpin, what) != nil {
			return
		}
	}
	slots := make(chan struct{}, maxInFlight)
	for {
		m, files, err := c.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil || m.Verb != wire.VerbPin {
			return
		}
		var q wire.DialRequest
		if err := json.Unmarshal(m.Body, &q); err != nil {
			return
		}
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			pinned, reason := s.pin(ctx, a, q, dialers)
			s.count(a, reason)
			if reason != nil {
				_ = c.Send(m.ID, wire.VerbDenied, wire.Denied{Reason: *reason})
				return
			}
			verb := wire.VerbPinned
			if pinned.Via != nil {
				verb = wire.VerbProxied
			}
			_ = c.Send(m.ID, verb, pinned)
		})
	}
}

func (s *Server) count(a *agent, r *deny.Reason) {
	a.mu.Lock()
	if r == nil {
		a.counters.Pinned++
	} else {
		a.counters.Denied++
		a.counters.ByCode[r.Code]++
	}
	a.mu.Unlock()
	if r != nil && s.cfg.Denied != nil {
		s.cfg.Denied(a.account, r)
	}
}

// Lists says whether the policy in force allows a destination ("name:port") to
// an account.
func (s *Server) Lists(account, destination string) bool {
	s.mu.Lock()
	a := s.agents[account]
	s.mu.Unlock()
	host, port, err := splitDestination(destination)
	if a == nil || err != nil {
		return false
	}
	_, ok := a.policy.Load().Keeps(host, port)
	return ok
}
