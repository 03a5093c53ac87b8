package resolver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"bulkhead/internal/wire"
)

// ErrNotFound says that DNS knows no address of the name.
var ErrNotFound = errors.New("resolver: no such name or no address")

// Client is the warden's side. It connects on demand, again after the resolver
// was restarted, and tells it the names first each time.
type Client struct {
	path string

	mu     sync.Mutex
	names  []string
	link   *link // nil: not connected
	closed bool
	work   sync.WaitGroup // the readers
}

// link is one connection with its answers.
type link struct {
	conn *wire.Conn
	done chan struct{} // closed when the reader ended

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan wire.Message // nil once the connection is lost
}

// NewClient talks to the resolver that listens on path. Nothing is opened yet.
func NewClient(path string) *Client { return &Client{path: path} }

// SetNames replaces everything that the resolver may ask for. It takes effect
// with the next Lookup at the latest.
func (c *Client) SetNames(names []string) {
	c.mu.Lock()
	c.names = append([]string(nil), names...)
	l := c.link
	c.mu.Unlock()
	if l != nil { // frames keep their order, so a later lookup sees the new names
		_ = l.conn.Send(0, wire.VerbNames, wire.Names{Names: names})
	}
}

// Lookup asks for the addresses of a name. ErrNotFound is an answer of DNS (no
// such name, or no address); every other error is a failure to get one.
func (c *Client) Lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	m, l, err := c.ask(ctx, name)
	if errors.Is(err, errLost) { // the resolver was restarted: once more
		c.drop(l)
		m, _, err = c.ask(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	switch m.Verb {
	case wire.VerbAnswer:
		var a wire.Answer
		if err := json.Unmarshal(m.Body, &a); err != nil {
			return nil, fmt.Errorf("resolver: answer for %s: %w", name, err)
		}
		if a.NotFound || len(a.Addresses) == 0 {
			return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
		}
		return a.Addresses, nil
	case wire.VerbError:
		var f wire.Failure
		_ = json.Unmarshal(m.Body, &f)
		return nil, errors.New(f.Message)
	}
	return nil, fmt.Errorf("resolver: unexpected answer %q for %s", m.Verb, name)
}

var errLost = errors.New("resolver: connection lost")

func (c *Client) ask(ctx context.Context, name string) (wire.Message, *link, error) {
	l, err := c.connect(ctx)
	if err != nil {
		return wire.Message{}, nil, err
	}
	answer := make(chan wire.Message, 1)
	l.mu.Lock()
	if l.waiting == nil {
		l.mu.Unlock()
		return wire.Message{}, l, errLost
	}
	l.next++
	id := l.next
	l.waiting[id] = answer
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.waiting, id)
		l.mu.Unlock()
	}()
	if err := l.conn.Send(id, wire.VerbLookup, wire.Lookup{Name: name}); err != nil {
		return wire.Message{}, l, errLost
	}
	select {
	case m := <-answer:
		return m, l, nil
	case <-l.done:
		return wire.Message{}, l, errLost
	case <-ctx.Done():
		return wire.Message{}, l, fmt.Errorf("resolver: %s: %w", name, ctx.Err())
	}
}

// drop gives a dead connection up before its reader has noticed.
func (c *Client) drop(l *link) {
	_ = l.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link = nil
	}
}

func (c *Client) connect(ctx context.Context) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	if c.link != nil {
		select {
		case <-c.link.done:
		default:
			return c.link, nil
		}
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, fmt.Errorf("resolver: not reachable: %w", err)
	}
	l := &link{conn: wire.New(raw.(*net.UnixConn)), done: make(chan struct{}), waiting: map[uint64]chan wire.Message{}}
	if _, err := l.conn.Greet(wire.ResolverProtocol, wire.ResolverVersion); err != nil {
		_ = l.conn.Close()
		return nil, fmt.Errorf("resolver: %w", err)
	}
	if err := l.conn.Send(0, wire.VerbNames, wire.Names{Names: c.names}); err != nil {
		_ = l.conn.Close()
		return nil, err
	}
	c.link = l
	c.work.Go(l.read)
	return l, nil
}

func (l *link) read() {
	defer close(l.done)
	defer func() { _ = l.conn.Close() }()
	for {
		m, files, err := l.conn.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		l.mu.Lock()
		if err != nil {
			l.waiting = nil
			l.mu.Unlock()
			return
		}
		if ch := l.waiting[m.ID]; ch != nil {
			ch <- m
			delete(l.waiting, m.ID)
		}
		l.mu.Unlock()
	}
}

// Close ends the connection.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	l := c.link
	c.mu.Unlock()
	if l != nil {
		_ = l.conn.Close()
	}
	c.work.Wait()
	return nil
}
