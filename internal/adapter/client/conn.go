package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/wire"
)

// ErrLost is wrapped by what fails with the connection.
var ErrLost = errors.New("the connection to the adapter was lost")

// who is what errors begin with.
const who = "adapter"

// authTimeout bounds how long an adapter may take to answer hello and auth.
const authTimeout = 10 * time.Second

// conn is one connection with open requests.
type conn struct {
	c    *protocol.Conn
	done chan struct{}

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan<- wire.Message
	err     error // why it ended; set before done is closed
}

// dial connects and greets. With a token it authenticates as well.
func dial(ctx context.Context, socket, token string) (*conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	w := wire.New(raw.(*net.UnixConn))
	stop := context.AfterFunc(ctx, func() { _ = w.Unix().SetDeadline(time.Unix(1, 0)) })
	err = open(w, token)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = w.Unix().SetDeadline(time.Time{})
	}
	if err != nil {
		_ = w.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("adapter: %w", err)
	}
	pipelined, err := protocol.NewConn(w)
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	c := &conn{c: pipelined, done: make(chan struct{}), waiting: map[uint64]chan<- wire.Message{}}
	go c.read()
	return c, nil
}

func open(w *wire.Conn, token string) error {
	if _, err := w.Greet(protocol.Name, protocol.Version); err != nil {
		return err
	}
	if token == "" {
		return nil
	}
	if err := w.Unix().SetDeadline(time.Now().Add(authTimeout)); err != nil {
		return err
	}
	if err := w.Send(1, protocol.VerbAuth, protocol.Auth{Token: token}); err != nil {
		return err
	}
	m, files, err := w.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return err
	}
	return protocol.Answer(m, protocol.VerbOK, who, nil)
}

// Close ends the connection. Open requests fail.
func (c *conn) Close() error {
	err := c.c.Close()
	<-c.done
	return err
}

// Done is closed when the connection is over.
func (c *conn) Done() <-chan struct{} { return c.done }

// read hands answers to those who wait, until the connection ends.
func (c *conn) read() {
	defer close(c.done)
	for {
		m, err := c.c.Read()
		if err != nil {
			c.mu.Lock()
			c.err = fmt.Errorf("%w: %w", ErrLost, err)
			for id, w := range c.waiting {
				delete(c.waiting, id)
				close(w)
			}
			c.mu.Unlock()
			_ = c.c.Close()
			return
		}
		c.mu.Lock()
		w := c.waiting[m.ID]
		c.mu.Unlock()
		if w != nil {
			w <- m
		}
	}
}

// call is one open request.
type call struct {
	c       *conn
	id      uint64
	answers chan wire.Message
}

// maxParts bounds the answers of one request that wait to be taken: what comes
// in parts is taken by a goroutine that does nothing else.
const maxParts = 4

func (c *conn) start(verb string, body func([]byte) []byte) (*call, error) {
	answers := make(chan wire.Message, maxParts)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	id := c.next
	c.waiting[id] = answers
	c.mu.Unlock()
	if err := c.c.Write(id, verb, body); err != nil {
		c.forget(id)
		if !errors.Is(err, wire.ErrFrame) {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return nil, err
	}
	return &call{c: c, id: id, answers: answers}, nil
}

func (c *conn) forget(id uint64) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
}

// next waits for an answer.
func (q *call) next(ctx context.Context) (wire.Message, error) {
	select {
	case m, ok := <-q.answers:
		if !ok {
			return m, q.c.lost()
		}
		return m, nil
	case <-ctx.Done():
		return wire.Message{}, ctx.Err()
	}
}

func (c *conn) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// end forgets the request. Answers that are still on their way are dropped.
func (q *call) end() {
	q.c.forget(q.id)
	for { // the reader may just be handing one over
		select {
		case _, open := <-q.answers:
			if !open {
				return // the connection ended
			}
		default:
			return
		}
	}
}

// ask is a request with one answer of the verb want, decoded into out.
func (c *conn) ask(ctx context.Context, verb string, body func([]byte) []byte, want string, out any) error {
	q, err := c.start(verb, body)
	if err != nil {
		return err
	}
	defer q.end()
	m, err := q.next(ctx)
	if err != nil {
		return err
	}
	return protocol.Answer(m, want, who, out)
}
