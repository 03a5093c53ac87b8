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

	"bulkhead/internal/deny"
	"bulkhead/internal/socket"
	"bulkhead/internal/wire"
)

// Client is the gateway's side. Requests are pipelined over one connection,
// which is made on demand and again after the dialer was restarted.
type Client struct {
	path string

	mu      sync.Mutex
	conn    *wire.Conn
	next    uint64
	waiting map[uint64]chan reply
	work    sync.WaitGroup
	closed  bool
}

type reply struct {
	m     wire.Message
	files []*os.File
	err   error
}

// NewClient talks to the dialer that listens on path. Nothing is opened yet.
func NewClient(path string) *Client { return &Client{path: path} }

var errLost = errors.New("the connection was lost")

// Dial gives a connected socket. A refusal is a *deny.Reason.
func (c *Client) Dial(ctx context.Context, host string, port uint16) (net.Conn, netip.AddrPort, error) {
	what := wire.DialRequest{Host: host, Port: port}
	f, to, err := c.ask(ctx, wire.VerbDial, what)
	if errors.Is(err, errLost) && ctx.Err() == nil { // the dialer was restarted: once more
		f, to, err = c.ask(ctx, wire.VerbDial, what)
	}
	if err != nil {
		return nil, netip.AddrPort{}, describe(what, err)
	}
	conn, err := socket.Connected(f, nowhere, net.TCPAddrFromAddrPort(to.Address))
	if err != nil {
		_ = f.Close()
		return nil, netip.AddrPort{}, describe(what, err)
	}
	return conn, to.Address, nil
}

// nowhere is the local address of a connection: nobody asked the kernel for it.
var nowhere = &net.TCPAddr{}

// Socket gives a TCP socket of the family (4 or 6) that is not connected.
func (c *Client) Socket(ctx context.Context, family int) (*os.File, error) {
	f, _, err := c.ask(ctx, wire.VerbSocket, wire.Connected{Family: family})
	return f, err
}

// describe turns a broken way to the dialer into a reason.
func describe(what wire.DialRequest, err error) error {
	var r *deny.Reason
	if errors.As(err, &r) {
		return err
	}
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.PinFailed, What: fmt.Sprintf("%s:%d", what.Host, what.Port),
		Why: "the agent's dialer does not answer: " + err.Error(), Mend: "try again; when it stays, run `bulkhead status` on the host",
	}
}

func (c *Client) ask(ctx context.Context, verb string, body any) (*os.File, wire.Connected, error) {
	r, err := c.exchange(ctx, verb, body)
	if err != nil {
		return nil, wire.Connected{}, err
	}
	return read(r)
}

// exchange sends one request and waits for its answer.
func (c *Client) exchange(ctx context.Context, verb string, body any) (reply, error) {
	answer := make(chan reply, 1)
	id, err := c.send(verb, body, answer)
	if err != nil {
		return reply{}, err
	}
	var r reply
	select {
	case r = <-answer:
	case <-ctx.Done():
		c.mu.Lock()
		_, open := c.waiting[id]
		delete(c.waiting, id)
		c.mu.Unlock()
		if open {
			return reply{}, ctx.Err()
		}
		r = <-answer // it was on its way: take it, so that no descriptor is lost
	}
	return r, r.err
}

func read(r reply) (*os.File, wire.Connected, error) {
	var keep *os.File
	if r.m.Verb == wire.VerbConnected && len(r.files) == 1 {
		keep = r.files[0]
	} else {
		for _, f := range r.files {
			_ = f.Close()
		}
	}
	switch {
	case keep != nil:
		var to wire.Connected
		if err := json.Unmarshal(r.m.Body, &to); err != nil {
			_ = keep.Close()
			return nil, to, fmt.Errorf("dialer: answer: %w", err)
		}
		return keep, to, nil
	case r.m.Verb == wire.VerbDenied:
		return nil, wire.Connected{}, denied(r.m)
	}
	return nil, wire.Connected{}, fmt.Errorf("dialer: answer %q with %d descriptors", r.m.Verb, len(r.files))
}

// send registers the question and sends it, once more over a new connection
// when the one at hand turns out to be dead.
func (c *Client) send(verb string, body any, answer chan reply) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for range 2 {
		if err = c.connectLocked(); err != nil {
			return 0, err
		}
		c.next++
		c.waiting[c.next] = answer
		if err = c.conn.Send(c.next, verb, body); err == nil {
			return c.next, nil
		}
		delete(c.waiting, c.next)
		_ = c.conn.Close()
		c.conn = nil
	}
	return 0, err
}

func (c *Client) connectLocked() error {
	if c.closed {
		return net.ErrClosed
	}
	if c.conn != nil {
		return nil
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	raw, err := d.Dial("unix", c.path)
	if err != nil {
		return err
	}
	conn := wire.New(raw.(*net.UnixConn))
	if _, err := conn.Greet(wire.DialerProtocol, wire.DialerVersion); err != nil {
		_ = conn.Close()
		return err
	}
	conn.ReadAhead()
	c.conn, c.waiting = conn, map[uint64]chan reply{}
	waiting := c.waiting
	c.work.Go(func() { c.read(conn, waiting) })
	return nil
}

// read takes answers until the connection is lost. waiting is the
// connection's own, guarded by c.mu: a later connection has another.
func (c *Client) read(conn *wire.Conn, waiting map[uint64]chan reply) {
	for {
		m, files, err := conn.Recv()
		c.mu.Lock()
		if err != nil {
			if c.conn == conn {
				c.conn = nil
			}
			for id, ch := range waiting {
				ch <- reply{err: fmt.Errorf("%w: %w", errLost, err)}
				delete(waiting, id)
			}
			c.mu.Unlock()
			_ = conn.Close()
			return
		}
		ch := waiting[m.ID]
		delete(waiting, m.ID)
		c.mu.Unlock()
		if ch == nil {
			for _, f := range files {
				_ = f.Close()
			}
			continue
		}
		ch <- reply{m: m, files: files}
	}
}

// Close ends the connection and waits for its reader.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.mu.Unlock()
	c.work.Wait()
	return nil
}
