package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/identity"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// Limits.
const (
	maxOperators   = 16 // connections of root that are answered at a time
	maxConnections = 4  // of one member
	authTimeout    = 10 * time.Second
)

// Answer does what an operator asks. An error is told to root as it is.
type Answer func(ctx context.Context, body json.RawMessage) (any, error)

// Config is one server.
type Config struct {
	// Protocol and Version are what members greet with. Empty: there are none.
	Protocol string
	Version  int
	// Operator are the server's own verbs for root.
	Operator map[string]Answer
	// Member serves one connection of a member that proved itself, until it
	// returns. The hub closes the connection.
	Member func(ctx context.Context, m Member, c *wire.Conn)
	// Out takes records of who was refused.
	Out io.Writer
}

// Hub is a running server.
type Hub struct {
	cfg Config
	log *record.Log

	change sync.Mutex // held while members come and go

	mu      sync.Mutex // guards members
	members map[string]*seat
	work    sync.WaitGroup
}

// seat is an admitted member.
type seat struct {
	Member
	cancel context.CancelFunc
	done   chan struct{}
	slots  chan struct{}
}

// New makes a hub that serves nobody yet.
func New(cfg Config) *Hub {
	if cfg.Out == nil {
		cfg.Out = io.Discard
	}
	return &Hub{cfg: cfg, log: record.NewLog("", cfg.Out), members: map[string]*seat{}}
}

// Run serves root on ln until ctx ends, and waits for what it started.
func (h *Hub) Run(ctx context.Context, ln *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer h.log.Flush()
	defer h.work.Wait()
	defer cancel()
	h.work.Go(func() { h.log.Run(ctx) })
	slots := make(chan struct{}, maxOperators)
	return wire.Serve(ctx, ln, func(_ context.Context, c *wire.Conn) {
		defer func() { _ = c.Close() }()
		peer, err := identity.PeerOf(c.Unix())
		if err != nil || peer.UID != 0 {
			_ = h.refuse("operator.sock", "", "", fmt.Sprintf("id %d connected to root's socket", peer.UID))
			return
		}
		// Root waits for its turn: many guests may be made at once, and a
		// connection that was closed instead would fail one of them.
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-slots }()
		h.operator(ctx, c)
	})
}

// operator answers root.
func (h *Hub) operator(ctx context.Context, c *wire.Conn) {
	if _, err := c.Greet(OperatorProtocol, OperatorVersion); err != nil {
		return
	}
	for {
		m, files, err := c.Recv()
		if err != nil {
			return
		}
		out, err := h.asked(ctx, m, files)
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			err = c.Send(m.ID, wire.VerbError, failure(err))
		} else {
			err = c.Send(m.ID, wire.VerbResult, out)
		}
		if err != nil {
			return
		}
	}
}

// failure keeps the exit code and mend of an error that has them.
func failure(err error) wire.Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f.Failure
	}
	return wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}
}

// Failure is an error for the person who asked.
type Failure struct{ wire.Failure }

// Error implements error.
func (f *Failure) Error() string { return f.Message }

// BadInput is a request that changed nothing because of what it says.
func BadInput(msg, mend string) error {
	return &Failure{wire.Failure{Message: msg, Mend: mend, Exit: wire.ExitBadInput}}
}

func (h *Hub) asked(ctx context.Context, m wire.Message, files []*os.File) (any, error) {
	switch m.Verb {
	case VerbAdmit:
		var one Member
		if err := json.Unmarshal(m.Body, &one); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
		if len(files) != 1 {
			return nil, fmt.Errorf("hub: %s came with %d descriptors, not one", m.Verb, len(files))
		}
		return struct{}{}, h.admit(ctx, one, files[0])
	case VerbExpel:
		var one Member
		if err := json.Unmarshal(m.Body, &one); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
		h.change.Lock()
		defer h.change.Unlock()
		h.expel(one.Key())
		return struct{}{}, nil
	case VerbMembers:
		h.mu.Lock()
		defer h.mu.Unlock()
		out := Members{Members: []Member{}}
		for _, k := range slices.Sorted(maps.Keys(h.members)) {
			out.Members = append(out.Members, h.members[k].Member)
		}
		return out, nil
	}
	if do, ok := h.cfg.Operator[m.Verb]; ok {
		return do(ctx, m.Body)
	}
	return nil, fmt.Errorf("hub: there is no verb %.40q", m.Verb)
}

// admit serves a member's socket, in the place of a former one.
func (h *Hub) admit(ctx context.Context, m Member, f *os.File) error {
	if h.cfg.Member == nil {
		return errors.New("hub: this server has no members")
	}
	if err := m.check(); err != nil {
		return err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("hub: the socket of %s: %w", m.Key(), err)
	}
	ln, ok := l.(*net.UnixListener)
	if !ok {
		return errors.Join(fmt.Errorf("hub: the socket of %s is no unix socket", m.Key()), l.Close())
	}
	ln.SetUnlinkOnClose(false) // the path is the warden's
	h.change.Lock()
	defer h.change.Unlock()
	h.expel(m.Key())
	ctx, cancel := context.WithCancel(ctx)
	s := &seat{Member: m, cancel: cancel, done: make(chan struct{}), slots: make(chan struct{}, maxConnections)}
	h.mu.Lock()
	h.members[m.Key()] = s
	h.mu.Unlock()
	h.work.Go(func() {
		defer close(s.done)
		defer cancel()
		// Only the loss of the listener ends it; root admits the member again.
		_ = wire.Serve(ctx, ln, func(ctx context.Context, c *wire.Conn) { h.member(ctx, s, c) })
	})
	return nil
}

// expel closes a member's socket and connections, and waits for their ends. The
// caller holds h.change.
func (h *Hub) expel(key string) {
	h.mu.Lock()
	s := h.members[key]
	delete(h.members, key)
	h.mu.Unlock()
	if s != nil {
		s.cancel()
		<-s.done
	}
}

// member serves one connection of a gateway.
func (h *Hub) member(ctx context.Context, s *seat, c *wire.Conn) {
	defer func() { _ = c.Close() }()
	select {
	case s.slots <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.slots }()
	if why := s.stranger(c.Unix()); why != "" {
		_ = h.refuse(h.cfg.Protocol+".sock", s.Team, s.Agent, why)
		return
	}
	_ = c.Unix().SetDeadline(time.Now().Add(authTimeout))
	if _, err := c.Greet(h.cfg.Protocol, h.cfg.Version); err != nil {
		return
	}
	m, files, err := c.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return
	}
	if !s.proves(m) {
		_ = c.Send(m.ID, VerbDenied, h.refuse(h.cfg.Protocol+".sock", s.Team, s.Agent, ""))
		return
	}
	if c.Send(m.ID, wire.VerbOK, struct{}{}) != nil {
		return
	}
	_ = c.Unix().SetDeadline(time.Time{})
	h.cfg.Member(ctx, s.Member, c)
}

// stranger says why the one who connected is not the member; empty when it is.
func (s *seat) stranger(u *net.UnixConn) string {
	peer, err := identity.PeerOf(u)
	switch {
	case err != nil:
		return "the kernel does not say who connected: " + err.Error()
	case peer.UID != s.GatewayID || peer.UID == identity.Overflow:
		return fmt.Sprintf("id %d connected, not %d, the gateway of %s", peer.UID, s.GatewayID, s.Key())
	}
	return ""
}
