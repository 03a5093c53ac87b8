package resolver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/wire"
)

// Limits of the server.
const (
	LookupTimeout = 5 * time.Second
	MaxAddresses  = 16 // of one answer; more are cut off
	maxNames      = 100_000
	maxInFlight   = 64
)

// Config is what a Server works with.
type Config struct {
	// Client is the only id that may connect: the warden's, root.
	Client uint32
	// Resolver replaces Go's own (tests).
	Resolver *net.Resolver
}

// Serve answers on ln until ctx ends, and waits for what it started.
func Serve(ctx context.Context, ln *net.UnixListener, cfg Config) error {
	if cfg.Resolver == nil {
		cfg.Resolver = &net.Resolver{PreferGo: true}
	}
	err := wire.Serve(ctx, ln, func(ctx context.Context, c *wire.Conn) {
		s := session{cfg: cfg, conn: c}
		s.serve(ctx)
	})
	if err != nil {
		return fmt.Errorf("resolver: %w", err)
	}
	return nil
}

// session is one connection of the warden. The names are the connection's: a
// new warden gives its own.
type session struct {
	cfg  Config
	conn *wire.Conn

	mu    sync.RWMutex
	names map[string]bool
}

func (s *session) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	defer func() { _ = s.conn.Close() }()
	peer, err := identity.PeerOf(s.conn.Unix())
	if err != nil || peer.UID != s.cfg.Client {
		return
	}
	if _, err := s.conn.Greet(wire.ResolverProtocol, wire.ResolverVersion); err != nil {
		return
	}
	slots := make(chan struct{}, maxInFlight)
	for {
		m, files, err := s.conn.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			return
		}
		switch m.Verb {
		case wire.VerbNames:
			var n wire.Names
			if err := json.Unmarshal(m.Body, &n); err != nil || len(n.Names) > maxNames {
				return
			}
			s.setNames(n.Names)
			if s.conn.Send(m.ID, wire.VerbOK, struct{}{}) != nil {
				return
			}
		case wire.VerbLookup:
			var l wire.Lookup
			if err := json.Unmarshal(m.Body, &l); err != nil {
				return
			}
			slots <- struct{}{}
			work.Go(func() {
				defer func() { <-slots }()
				s.answer(ctx, m.ID, l.Name)
			})
		default:
			_ = s.conn.Send(m.ID, wire.VerbError, wire.Failure{Message: "resolver: unknown verb " + m.Verb})
			return
		}
	}
}

func (s *session) setNames(names []string) {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = set
}

// may says whether the name was given, itself or by a suffix.
func (s *session) may(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if strings.ContainsRune(name, '*') {
		return false
	}
	if s.names[name] {
		return true
	}
	for rest := name; ; {
		_, after, ok := strings.Cut(rest, ".")
		if !ok {
			return false
		}
		if s.names["*."+after] {
			return true
		}
		rest = after
	}
}

func (s *session) answer(ctx context.Context, id uint64, name string) {
	if !s.may(name) {
		_ = s.conn.Send(id, wire.VerbError, wire.Failure{Message: fmt.Sprintf("resolver: %.260q is in no manifest", name)})
		return
	}
	ctx, cancel := context.WithTimeout(ctx, LookupTimeout)
	defer cancel()
	// The dot keeps search domains of resolv.conf out. Go's resolver takes the
	// hosts file's word for the name with the dot as well.
	addrs, err := s.cfg.Resolver.LookupNetIP(ctx, "ip", name+".")
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound && !dns.IsTemporary && !dns.IsTimeout:
		_ = s.conn.Send(id, wire.VerbAnswer, wire.Answer{NotFound: true})
	case err != nil:
		_ = s.conn.Send(id, wire.VerbError, wire.Failure{Message: "resolver: " + err.Error()})
	default:
		_ = s.conn.Send(id, wire.VerbAnswer, wire.Answer{Addresses: tidy(addrs)})
	}
}

// tidy takes double addresses away and bounds their number. Go returns A
// records as IPv4-mapped addresses in some paths; a mapped address in an AAAA
// record cannot be told from them, and is checked as the IPv4 address it is.
func tidy(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap(); !slices.Contains(out, a) && len(out) < MaxAddresses {
			out = append(out, a)
		}
	}
	return out
}
