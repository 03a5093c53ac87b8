package dialer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/identity"
	"bulkhead/internal/wire"
)

// Limits of the server.
const (
	// A gateway has one; `verify` has four probes connect beside it.
	maxConnections = 16
	maxInFlight    = 256
	maxWorkers     = 32 // of those in flight, the ones that stay
	connectTimeout = 10 * time.Second
	// upstreamTimeout covers the proxy's own look-up and connection.
	upstreamTimeout = 25 * time.Second
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
	s := &server{cfg: cfg, relays: newRelays(), places: places, conns: make(chan struct{}, maxConnections)}
	s.pins = newPins(cfg.PinSocket, cfg.Relay, s.relays.end)
	defer s.relays.close()
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
	relays *relays
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
	c.ReadAhead()
	// Workers stay for the next question: the stack of a new goroutine would have
	// to grow for each.
	jobs, workers := make(chan job), 0
	slots := make(chan struct{}, maxInFlight-maxWorkers) // of those who do not stay
	defer close(jobs)
	for {
		m, files, err := c.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			return
		}
		switch m.Verb {
		case wire.VerbDial, wire.VerbAddresses:
			var q wire.DialRequest
			if json.Unmarshal(m.Body, &q) != nil {
				return
			}
			one := job{m.ID, m.Verb, q}
			select {
			case jobs <- one: // somebody is idle
				continue
			default:
			}
			if workers < maxWorkers {
				workers++
				work.Go(func() {
					s.answer(ctx, c, one)
					for one := range jobs {
						s.answer(ctx, c, one)
					}
				})
				continue
			}
			slots <- struct{}{}
			work.Go(func() {
				defer func() { <-slots }()
				s.answer(ctx, c, one)
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

// job is one question of a gateway's.
type job struct {
	id   uint64
	verb string
	q    wire.DialRequest
}

func (s *server) answer(ctx context.Context, c *wire.Conn, one job) {
	if one.verb == wire.VerbAddresses {
		s.addresses(ctx, c, one.id, one.q)
		return
	}
	s.dial(ctx, c, one)
}

func (s *server) dial(ctx context.Context, c *wire.Conn, one job) {
	limit := connectTimeout
	if s.cfg.Relay {
		limit = upstreamTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sock, to, reason := s.connected(ctx, one.q)
	if reason != nil {
		_ = c.Send(one.id, wire.VerbDenied, wire.Denied{Reason: *reason})
		return
	}
	_ = c.SendDescriptor(one.id, wire.VerbConnected, wire.Connected{Address: to}, int(sock))
	sock.close()
}

// connected gives a connected socket that is counted.
func (s *server) connected(ctx context.Context, q wire.DialRequest) (sock descriptor, to netip.AddrPort, reason *deny.Reason) {
	before := s.pins.unpins.Load()
	pinned, fromCache, reason := s.pins.get(ctx, q)
	if reason == nil {
		reason = s.place(ctx, asked(q))
	}
	if reason != nil {
		return none, to, reason
	}
	sock, to, again, reason := s.reach(ctx, q, pinned)
	if again && fromCache {
		// The kernel may have lost or revoked what we have cached, or the
		// credentials are new: ask once.
		s.pins.forget(q)
		before = s.pins.unpins.Load()
		if pinned, _, reason = s.pins.fresh(ctx, q); reason == nil {
			sock, to, _, reason = s.reach(ctx, q, pinned)
		}
	}
	if reason != nil {
		s.places.leave()
		return none, to, reason
	}
	if pinned.Via != nil && s.pins.unpins.Load() != before {
		// Something was taken back meanwhile, and was not yet here to be cut.
		if _, _, reason := s.pins.fresh(ctx, q); reason != nil {
			s.relays.end(pinned.Via.Target)
			sock.close()
			return none, to, reason
		}
	}
	return sock, to, nil
}

// asked names a request in a reason.
func asked(q wire.DialRequest) string { return fmt.Sprintf("%.300s:%d", q.Host, q.Port) }

// reach makes one attempt at what is pinned, and gives the socket to pass on
// with the place that was taken for it; the place is still the caller's when
// there is a reason. again says that a fresh pin may help.
func (s *server) reach(ctx context.Context, q wire.DialRequest, pinned wire.Pinned) (_ descriptor, to netip.AddrPort, again bool, _ *deny.Reason) {
	sock, to, err := race(ctx, pinned.Addresses)
	switch {
	case err != nil && pinned.Via != nil:
		return none, to, refusedHere(err), upstreamFailed(pinned.Via, err)
	case err != nil:
		return none, to, refusedHere(err), &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.Unreachable, What: asked(q),
			Why: "it is allowed, but no connection came about: " + err.Error(), Mend: "check that the service runs and can be reached from this host",
		}
	case s.cfg.Relay:
		passed, again, reason := s.relay(ctx, q, pinned.Via, sock)
		return passed, to, again, reason
	}
	if err := s.places.keep(sock); err != nil {
		sock.close()
		return none, to, false, s.full(asked(q), err)
	}
	return sock, to, false, nil
}

// relay takes a connected socket over and gives the end of a pair instead. A
// place is the socket's own, not the pair's: it is what the host bears.
func (s *server) relay(ctx context.Context, q wire.DialRequest, via *wire.Via, sock descriptor) (_ descriptor, again bool, _ *deny.Reason) {
	up, err := tcp(sock)
	if err != nil {
		return none, false, s.full(asked(q), err)
	}
	var early []byte
	target, ends := "", time.Time{}
	if via != nil {
		var reason *deny.Reason
		if early, again, reason = connectUpstream(ctx, up, via); reason != nil {
			_ = up.Close()
			return none, again, reason
		}
		target, ends = via.Target, via.Ends
	}
	passed, err := s.relays.start(up, early, target, ends, s.places.keepConn)
	if err != nil {
		return none, false, s.full(asked(q), err)
	}
	return passed, false, nil
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
	if s.cfg.Relay {
		_ = c.Send(id, wire.VerbDenied, wire.Denied{Reason: deny.Reason{
			Layer: deny.LayerEgress, Code: deny.RelayedOnly, What: "socket",
			Why:  "this dialer may reach the upstream proxy, which leads everywhere, so it passes no socket of the host's network on",
			Mend: "nothing: ask for a destination by name",
		}})
		return
	}
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
	sock := descriptor(fd)
	defer sock.close()
	if err := s.places.keep(sock); err != nil {
		s.places.leave()
		_ = c.Send(id, wire.VerbDenied, wire.Denied{Reason: *s.full("socket", err)})
		return
	}
	_ = c.SendDescriptor(id, wire.VerbConnected, wire.Connected{Family: family}, fd)
}

// refusedHere says whether it looks like the kernel's own refusal.
func refusedHere(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EHOSTUNREACH)
}
