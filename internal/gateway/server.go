package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/dialer"
	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/identity"
	"bulkhead/internal/proxy"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// Limits of the socket.
const (
	maxPeers     = 256  // connections on gateway.sock
	maxListeners = 4096 // of the runtime, in all
	peekTimeout  = 10 * time.Second
)

// Server is one agent's gateway.
type Server struct {
	cfg      Config
	token    [sha256.Size]byte
	log      *record.Log
	dialer   *dialer.Client
	proxy    *proxy.Proxy
	api      *api
	messages *messages.Messages // nil: the agent has none
	grants   *grants
	tools    *toolbox
	bodies   bodies
	tokens   *tokens
	peers    chan struct{}

	mu        sync.Mutex
	listeners int
}

// Tune sets the garbage collector of a gateway's process: its live heap is a
// few MB, so collecting at five times that costs little memory and saves a
// tenth of the time of a request; a burst of connections stays below the limit
// at which collecting becomes eager. With tools the live heap is larger, and
// most of a call is the disk's time: it is collected at twice its size.
func Tune(cfg *Config) {
	debug.SetGCPercent(400)
	if cfg.Tools != nil {
		debug.SetGCPercent(100)
	}
	debug.SetMemoryLimit(96 << 20)
}

// newServer makes a server that serves nobody yet.
func newServer(cfg Config, out io.Writer) (*Server, error) {
	s := &Server{
		cfg: cfg, token: sha256.Sum256([]byte(cfg.Token)), log: record.NewLog(cfg.Team, out),
		dialer: dialer.NewClient(cfg.DialerSocket), peers: make(chan struct{}, maxPeers),
	}
	s.grants, s.tokens = newGrants(&cfg), newTokens(&cfg)
	s.grants.trust = s.tokens.told
	s.grants.news = &news{agent: cfg.Agent}
	s.log.Tell(&s.grants.news.lines)
	if cfg.AdapterSocket != "" {
		var err error
		if s.messages, err = messages.Open(messages.Config{
			Agent: cfg.Agent, Socket: cfg.AdapterSocket, Token: cfg.AdapterToken, Data: cfg.Data, Log: s.log,
		}); err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
	}
	// Everything that leaves by the gateway is dialled here.
	dial := func(ctx context.Context, host string, port uint16) (net.Conn, error) {
		return s.tools.approved(ctx, host, port, func() (net.Conn, error) {
			if reason := s.grants.use(host, port); reason != nil {
				return nil, reason
			}
			c, _, err := s.dialer.Dial(ctx, host, port)
			return c, err
		})
	}
	s.bodies = newBodies()
	s.tools = &toolbox{seen: &s.grants.news.calls, means: means{
		cfg: &s.cfg, log: s.log, messages: s.messages, dial: dial, resolve: s.resolve, policy: s.grants.policy, decided: s.record, still: s.tokens.still,
		asking: func() { s.grants.news.lines.Tell(record.Record{}) }, // has [news.tellPeople] look again
	}}
	s.grants.govern, s.grants.news.asking = s.tools.govern, s.tools.asking
	s.grants.news.recent, s.grants.news.messages = s.tools.recent, s.messages
	if cfg.Tools != nil {
		// What fails is on record, and tried again by the first call: the
		// agent's connections and messages do not depend on it.
		_, _ = s.tools.get(context.Background())
	}
	s.api = newAPI(s)
	s.proxy = proxy.New(proxy.Config{
		Own:    s.api.handler,
		Policy: s.grants.policy, Record: s.record, MaxConnections: cfg.MaxConnections,
		Dial: dial,
	})
	return s, nil
}

// Serve serves ln until ctx ends, and waits for what it started. Records go to
// out.
func Serve(ctx context.Context, ln *net.UnixListener, cfg Config, out io.Writer) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	s, err := newServer(cfg, out)
	if err != nil {
		return err
	}
	if s.messages != nil {
		defer func() { _ = s.messages.Close() }()
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer s.log.Flush() // what was decided while everything ended
	defer func() { _ = s.dialer.Close() }()
	defer func() { _ = s.tools.close() }()
	defer work.Wait()
	defer func() { _ = s.proxy.Close() }()
	defer func() { _ = s.api.close() }()
	defer cancel()
	work.Go(func() { s.log.Run(ctx) })
	if cfg.GrantsListener != nil {
		work.Go(func() { s.grants.serve(ctx, cfg.GrantsListener) })
	}
	if cfg.Front != nil {
		work.Go(func() { s.fromFront(ctx) })
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	for {
		c, err := ln.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) {
			time.Sleep(20 * time.Millisecond) // until descriptors are free again
			continue
		}
		if err != nil {
			return fmt.Errorf("gateway: accept: %w", err)
		}
		select {
		case s.peers <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		work.Go(func() {
			free := sync.OnceFunc(func() { <-s.peers })
			defer free()
			end := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer end()
			s.serve(ctx, c, free)
		})
	}
}

// record writes a decision about egress.
func (s *Server) record(target string, v record.Verdict, r *deny.Reason) {
	s.log.Add(s.cfg.Agent, record.Egress, target, v, r)
}

func (s *Server) serve(ctx context.Context, c *net.UnixConn, free func()) {
	peer, err := identity.PeerOf(c)
	if err != nil || peer.UID != s.cfg.RuntimeID || peer.UID == identity.Overflow {
		s.record("gateway.sock", record.Denied, &deny.Reason{
			Layer: deny.LayerPod, Code: deny.BadPeer, What: "gateway.sock", Why: fmt.Sprintf("id %d connected, not the runtime's %d", peer.UID, s.cfg.RuntimeID),
			Mend: "nothing: only the agent's own runtime may speak to its gateway",
		})
		_ = c.Close()
		return
	}
	b, err := peek(c)
	switch {
	case err != nil:
		_ = c.Close()
	case b == 0: // the length of a frame below 16 MiB
		s.frames(ctx, wire.New(c), free)
	default:
		s.api.serve(c)
	}
}

// peek looks at the first byte without taking it: descriptors travel with it.
func peek(c *net.UnixConn) (byte, error) {
	if err := c.SetReadDeadline(time.Now().Add(peekTimeout)); err != nil {
		return 0, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var b [1]byte
	var n int
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		n, _, inner = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT) // #nosec G115 -- a descriptor
		return !errors.Is(inner, unix.EAGAIN) && !errors.Is(inner, unix.EINTR)
	})
	if err = errors.Join(err, inner); err == nil && n == 0 {
		err = io.EOF
	}
	return b[0], errors.Join(err, c.SetReadDeadline(time.Time{}))
}

// frames speaks the gateway protocol. The listeners live as long as it does. A
// connection that is relayed goes on without it.
func (s *Server) frames(ctx context.Context, c *wire.Conn, free func()) {
	var work sync.WaitGroup
	var mine []net.Listener
	relayed := false
	defer func() {
		if relayed {
			return
		}
		for _, l := range mine {
			_ = l.Close()
		}
		work.Wait()
		s.count(-len(mine))
		_ = c.Close()
		if len(mine) > 0 {
			s.tools.endSession() // that of the runtime's shim
		}
	}()
	if _, err := c.Greet(wire.GatewayProtocol, wire.GatewayVersion); err != nil {
		return
	}
	for {
		m, files, err := c.Recv()
		if err != nil {
			return
		}
		if m.Verb == wire.VerbRelay && len(mine) == 0 {
			for _, f := range files {
				_ = f.Close()
			}
			relayed = s.relay(ctx, c, m, free)
			return
		}
		served, err := s.listen(ctx, m, files, &work)
		mine = append(mine, served...)
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: err.Error()})
			return
		}
		if c.Send(m.ID, wire.VerbOK, struct{}{}) != nil {
			return
		}
	}
}

// listen takes the listeners of one request and starts serving them, or none.
func (s *Server) listen(ctx context.Context, m wire.Message, files []*os.File, work *sync.WaitGroup) ([]net.Listener, error) {
	var q wire.ListenRequest
	if m.Verb != wire.VerbListen {
		return nil, fmt.Errorf("gateway: unknown verb %.40q", m.Verb)
	}
	if err := json.Unmarshal(m.Body, &q); err != nil {
		return nil, fmt.Errorf("gateway: request: %w", err)
	}
	if err := s.authorise(q.Token); err != nil {
		return nil, err
	}
	n, come := len(q.Listeners), len(q.Listeners)
	if q.Relayed {
		come = 0
	}
	if len(files) != come || n == 0 {
		return nil, fmt.Errorf("gateway: %d listeners with %d descriptors", n, len(files))
	}
	if !s.count(n) {
		return nil, fmt.Errorf("gateway: more than %d listeners", maxListeners)
	}
	var out []net.Listener
	targets := make([]target, n)
	var err error
	for i, l := range q.Listeners {
		var ln net.Listener
		targets[i], err = s.target(l.Target)
		switch {
		case err != nil:
		case q.Relayed:
			ln = elsewhere{}
		default:
			ln, err = listener(files[i])
		}
		if err != nil {
			err = fmt.Errorf("gateway: listener %d, %.80q for %.80q: %w", i, l.Address, l.Target, err)
			break
		}
		out = append(out, ln)
	}
	if err != nil {
		for _, l := range out {
			_ = l.Close()
		}
		s.count(-n)
		return nil, err
	}
	if q.Relayed {
		return out, nil
	}
	for i, ln := range out {
		work.Go(func() {
			if targets[i].host == "" {
				_ = s.proxy.ServeProxy(ln)
				return
			}
			_ = s.proxy.ServeStatic(ctx, ln, targets[i].host, targets[i].port)
		})
	}
	return out, nil
}

// count keeps the number of listeners within its bound.
func (s *Server) count(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners+n > maxListeners {
		return false
	}
	s.listeners += n
	return true
}
