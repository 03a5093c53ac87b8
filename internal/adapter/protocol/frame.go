package protocol

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync"

	"bulkhead/internal/socket"
	"bulkhead/internal/wire"
)

// Conn is the pipelined part of a connection: what hello and auth were said
// over goes on as buffered frames, so that many small ones cost few system
// calls. Write may be called from many goroutines, Read from one at a time.
type Conn struct {
	c *socket.QuietConn
	r *bufio.Reader

	mu      sync.Mutex
	wake    *sync.Cond // the writer sleeps on it, and Write when pending is full
	pending []byte     // frames that wait; of the first, what was not written
	off     int        // of pending, what was written already
	writing bool       // somebody is in write
	waiting int        // calls of Write that wait for room
	frames  int        // that were added since the last write
	last    int        // that were in it
	holding bool       // Release will write what Queue was given
	err     error
	closed  bool
	done    chan struct{}
}

// maxPending is when Write begins to wait for a peer that does not read, and
// maxKept what a burst's buffer may have to be kept for the next one.
const (
	maxPending = 2 * wire.MaxFrame
	maxKept    = 2 << 20
)

// NewConn takes ownership of a connection whose peers have greeted, unless it fails.
func NewConn(c *wire.Conn) (*Conn, error) {
	u, err := socket.Quiet(c.Unix())
	if err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	out := &Conn{c: u, r: bufio.NewReaderSize(u, 64<<10), done: make(chan struct{})}
	out.wake = sync.NewCond(&out.mu)
	go out.flush()
	return out, nil
}

// Close ends the connection and its writer. What Write had taken and the
// kernel not is lost.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.wake.Broadcast()
	c.mu.Unlock()
	err := c.c.Close()
	<-c.done
	return err
}

// Write sends one frame around a body that is JSON already. body appends it.
// Frames of concurrent calls travel together. What the kernel does not take at
// once, flush goes on with: Write waits only while too much is pending.
func (c *Conn) Write(id uint64, verb string, body func([]byte) []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.left() > maxPending && c.err == nil && !c.closed {
		c.waiting++
		c.wake.Wait()
		c.waiting--
	}
	if err := c.add(id, verb, body); err != nil || c.writing {
		return err
	}
	// To write here and not in flush saves waking another thread. Those that were
	// woken together with the caller get to add theirs, where there were any the
	// last time: to let others go first wakes a thread, too.
	c.writing = true
	if c.last > 1 {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	c.write(c.c.Try)
	return nil
}

// Queue leaves a frame to be sent and never waits: for a caller whom nobody's
// slowness may hold up. It is not taken when the peer does not read what there
// is already.
func (c *Conn) Queue(id uint64, verb string, body func([]byte) []byte) (taken bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left() > maxPending && c.err == nil && !c.closed {
		return false, nil
	}
	idle := c.left() == 0 && !c.writing && !c.holding
	if err = c.add(id, verb, body); err == nil && idle {
		c.wake.Broadcast()
	}
	return true, err
}

// Hold lets what Queue is given wait for Release, which writes all of it at once
// and without waking another goroutine. One goroutine calls both.
func (c *Conn) Hold() {
	c.mu.Lock()
	c.holding = true
	c.mu.Unlock()
}

// Release ends Hold.
func (c *Conn) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding = false
	if c.left() > 0 && !c.writing && c.err == nil && !c.closed {
		c.writing = true
		c.write(c.c.Try)
	}
}

// add appends a frame to what is pending.
func (c *Conn) add(id uint64, verb string, body func([]byte) []byte) error {
	if c.err != nil {
		return c.err
	}
	if c.closed {
		return net.ErrClosed
	}
	start := len(c.pending)
	b := append(c.pending, 0, 0, 0, 0)
	b = append(b, `{"id":`...)
	b = strconv.AppendUint(b, id, 10)
	b = append(b, `,"verb":"`...)
	b = append(b, verb...)
	b = append(b, `","body":`...)
	b = body(b)
	b = append(b, '}')
	n := len(b) - start - 4
	if n > wire.MaxFrame {
		c.pending = b[:start]
		return fmt.Errorf("%w: %s is %d bytes, more than %d", wire.ErrFrame, verb, n, wire.MaxFrame)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(n)) // #nosec G115 -- bounded by MaxFrame above
	c.pending = b
	c.frames++
	return nil
}

// flush writes what others left, until Close.
func (c *Conn) flush() {
	defer close(c.done)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil {
		for (c.left() == 0 || c.writing) && !c.closed && c.err == nil {
			c.wake.Wait()
		}
		if c.closed {
			return
		}
		if c.err == nil {
			c.writing = true
			c.write(c.c.Write)
		}
	}
}

// left is how much waits to be written.
func (c *Conn) left() int { return len(c.pending) - c.off }

// write writes what is pending, all of it at once, while others add to it: what
// there was stays where it is. The caller holds mu and has set writing.
func (c *Conn) write(to func([]byte) (int, error)) {
	out := c.pending[c.off:]
	c.last, c.frames = c.frames, 0
	c.mu.Unlock()
	n, err := to(out)
	c.mu.Lock()
	c.writing = false
	if err != nil {
		c.err = fmt.Errorf("adapter: %w", err)
	}
	switch c.off += n; {
	case c.left() == 0 && cap(c.pending) > maxKept:
		c.pending, c.off = nil, 0
	case c.off >= len(c.pending)/2: // so that it does not grow for ever
		c.pending = c.pending[:copy(c.pending, c.pending[c.off:])]
		c.off = 0
	}
	if c.left() > 0 || c.waiting > 0 || c.err != nil {
		c.wake.Broadcast()
	}
}

// Ready says whether Read has a whole frame to give without waiting for it.
func (c *Conn) Ready() bool {
	if c.r.Buffered() < 4 {
		return false
	}
	head, err := c.r.Peek(4)
	return err == nil && int64(c.r.Buffered()) >= 4+int64(binary.BigEndian.Uint32(head))
}

// Read gives the next frame; its body is the caller's.
func (c *Conn) Read() (wire.Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: %w", wire.ErrFrame, err)
		}
		return wire.Message{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > wire.MaxFrame {
		return wire.Message{}, fmt.Errorf("%w: length %d is more than %d", wire.ErrFrame, n, wire.MaxFrame)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(c.r, payload); err != nil {
		return wire.Message{}, fmt.Errorf("%w: ended inside a frame of %d bytes: %w", wire.ErrFrame, n, err)
	}
	return Decode(payload)
}

// Decode parses a frame's JSON. One in the form that Write makes is cut apart
// without being parsed: its body is, when somebody decodes that, and a frame is
// JSON when its body is.
func Decode(payload []byte) (wire.Message, error) {
	if m, ok := cut(payload); ok {
		return m, nil
	}
	return wire.Decode(payload)
}

func cut(p []byte) (m wire.Message, ok bool) {
	p, ok = bytes.CutPrefix(p, []byte(`{"id":`))
	if !ok {
		return m, false
	}
	i := 0
	for i < len(p) && i < 20 && p[i] >= '0' && p[i] <= '9' {
		i++
	}
	id, err := strconv.ParseUint(string(p[:i]), 10, 64)
	if err != nil || i > 1 && p[0] == '0' {
		return m, false
	}
	if p, ok = bytes.CutPrefix(p[i:], []byte(`,"verb":"`)); !ok {
		return m, false
	}
	i = 0
	for i < len(p) && i < 32 && (p[i] >= 'a' && p[i] <= 'z' || p[i] == '_') {
		i++
	}
	if i == 0 {
		return m, false
	}
	m.ID, m.Verb = id, string(p[:i])
	if p, ok = bytes.CutPrefix(p[i:], []byte(`","body":`)); !ok {
		return wire.Message{}, false
	}
	if p, ok = bytes.CutSuffix(p, []byte{'}'}); !ok {
		return wire.Message{}, false
	}
	m.Body = p
	return m, true
}
