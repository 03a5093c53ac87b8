package dialer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/identity"
	"bulkhead/internal/wire"
)

// Limits of the server.
const (
	maxConnections = 4
	maxInFlight    = 256
	connectTimeout = 10 * time.Second
	// headStart is how long the first address is alone (RFC 8305, 5: 250 ms).
	headStart = 250 * time.Millisecond
)

// Serve answers the gateway on ln until ctx ends, and waits for what it
// started.
func Serve(ctx context.Context, ln *net.UnixListener, cfg Config) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	places, err := newPlaces(cfg.Connections, cfg.PerSecond)
	if err != nil {
		return err
	}
	defer func() { _ = places.close() }()
	s := &server{cfg: cfg, pins: newPins(cfg.PinSocket), places: places, conns: make(chan struct{}, maxConnections)}
	defer s.pins.close()
	if err := wire.Serve(ctx, ln, s.serve); err != nil {
		return fmt.Errorf("dialer: %w", err)
	}
	return nil
}

type server struct {
	cfg    Config
	pins   *pins
	places *places
	conns  chan struct{}
}

func (s *server) serve(ctx context.Context, c *wire.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	defer func() { _ = c.Close() }()
	peer, err := identity.PeerOf(c.Unix())
	if err != nil || peer.UID != s.cfg.Gateway || peer.UID == identity.Overflow {
		return
	}
	select {
	case s.conns <- struct{}{}:
		defer func() { <-s.conns }()
	default:
		return
	}
	if _, err := c.Greet(wire.DialerProtocol, wire.DialerVersion); err != nil {
		return
	}
	slots := make(chan struct{}, maxInFlight)
	for {
		m, files, err := c.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			return
		}
		switch m.Verb {
		case wire.VerbDial:
			var q wire.DialRequest
			if json.Unmarshal(m.Body, &q) != nil {
				return
			}
			slots <- struct{}{}
			work.Go(func() {
				defer func() { <-slots }()
				s.dial(ctx, c, m.ID, q)
			})
		case wire.VerbSocket:
			var q wire.Connected
			_ = json.Unmarshal(m.Body, &q) // no body: family 4
			s.socket(ctx, c, m.ID, q.Family)
		default:
			return
		}
	}
}

func (s *server) dial(ctx context.Context, c *wire.Conn, id uint64, q wire.DialRequest) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	sock, to, reason := s.connected(ctx, q)
	if reason != nil {
		_ = c.Send(id, wire.VerbDenied, wire.Denied{Reason: *reason})
		return
	}
	_ = c.Send(id, wire.VerbConnected, wire.Connected{Address: to}, sock)
	_ = sock.Close()
}

// connected gives a connected socket that is counted.
func (s *server) connected(ctx context.Context, q wire.DialRequest) (sock *os.File, to netip.AddrPort, reason *deny.Reason) {
	what := fmt.Sprintf("%.300s:%d", q.Host, q.Port)
	pinned, fromCache, reason := s.pins.get(ctx, q)
	if reason == nil {
		reason = s.place(ctx, what)
	}
	if reason != nil {
		return nil, to, reason
	}
	sock, to, err := race(ctx, pinned.Addresses)
	if err != nil && fromCache && refusedHere(err) {
		// The kernel may have lost or revoked what we have cached: ask once.
		s.pins.forget(q)
		if pinned, _, reason = s.pins.fresh(ctx, q); reason == nil {
			sock, to, err = race(ctx, pinned.Addresses)
		}
	}
	if err != nil && reason == nil {
		reason = &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.Unreachable, What: what,
			Why: "it is allowed, but no connection came about: " + err.Error(), Mend: "check that the service runs and can be reached from this host",
		}
	}
	if reason == nil {
		if err := s.places.keep(sock); err != nil {
			_ = sock.Close()
			reason = s.full(what, err)
		}
	}
	if reason != nil {
		s.places.leave()
		return nil, to, reason
	}
	return sock, to, nil
}

// place takes a place for a connection.
func (s *server) place(ctx context.Context, what string) *deny.Reason {
	if err := s.places.take(ctx); err != nil {
		return s.full(what, err)
	}
	return nil
}

// full says why there is no place for another connection.
func (s *server) full(what string, err error) *deny.Reason {
	r := &deny.Reason{Layer: deny.LayerEgress, Code: deny.TooMany, What: what}
	switch {
	case errors.Is(err, errFull):
		r.Why = fmt.Sprintf("all %d connections that limits.connections allows are open", s.cfg.Connections)
		r.Mend = "close some of them, or write a larger limits.connections in the manifest"
	case errors.Is(err, errFast):
		r.Why = fmt.Sprintf("more than %d new connections a second for long, which limits.connections: %d allows", s.cfg.PerSecond, s.cfg.Connections)
		r.Mend = "keep connections open and use them again, wait a moment, or write a larger limits.connections in the manifest"
	default:
		r.Why, r.Mend = "it cannot be counted against limits.connections: "+err.Error(), "try again; when it goes on, restart the agent"
	}
	return r
}

// socket passes a fresh TCP socket, for attacks. The kernel judges every
// packet of it by our id.
func (s *server) socket(ctx context.Context, c *wire.Conn, id uint64, family int) {
	if reason := s.place(ctx, "socket"); reason != nil {
		_ = c.Send(id, wire.VerbDenied, wire.Denied{Reason: *reason})
		return
	}
	domain := unix.AF_INET
	if family == 6 {
		domain = unix.AF_INET6
	} else {
		family = 4
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		s.places.leave()
		_ = c.Send(id, wire.VerbDenied, wire.Denied{Reason: deny.Reason{
			Layer: deny.LayerEgress, Code: deny.Unreachable, What: "socket", Why: err.Error(), Mend: "free descriptors or memory",
		}})
		return
	}
	f := os.NewFile(uintptr(fd), "socket") // #nosec G115 -- a descriptor
	defer func() { _ = f.Close() }()
	if err := s.places.keep(f); err != nil {
		s.places.leave()
		_ = c.Send(id, wire.VerbDenied, wire.Denied{Reason: *s.full("socket", err)})
		return
	}
	_ = c.Send(id, wire.VerbConnected, wire.Connected{Family: family}, f)
}

// refusedHere says whether it looks like the kernel's own refusal.
func refusedHere(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EHOSTUNREACH)
}
