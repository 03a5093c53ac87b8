package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of kept connections.
const (
	maxIdle      = 4 * maxIdleUp   // in all
	idleUp       = time.Minute     // how long one is kept
	sweepEvery   = 5 * time.Second // how soon one that the far side has closed is
	maxAnswer    = maxHeader       // the head of an answer; net/http takes 30 bytes for each
	patience     = 100 * time.Millisecond
	keptComposed = 8 << 10
)

// upConn is a connection to a destination, for one exchange at a time.
type upConn struct {
	conn     net.Conn
	pool     *upstreams
	to       string // the target
	r        *bufio.Reader
	composed bytes.Buffer // the request
	since    time.Time    // it is idle

	// Of the exchange.
	heard bool      // a byte has come
	head  int       // bytes that its head may still take; below 0: no bound
	x     *exchange // nil: it is idle
}

var errHeadTooLarge = errors.New("the answer's header is too large")

// begin prepares an exchange.
func (u *upConn) begin(x *exchange) error {
	u.x, u.heard, u.head = x, false, maxAnswer
	if x.watch != nil {
		return u.conn.SetDeadline(time.Time{})
	}
	return u.conn.SetDeadline(time.Now().Add(patience))
}

// patient goes on without a deadline, while the client is watched.
func (u *upConn) patient() error {
	u.x.watchClient(func() { _ = u.conn.Close() })
	return u.conn.SetDeadline(time.Time{})
}

// send sends the request. A far side that answered the one before without
// reading it may leave no room.
func (u *upConn) send() error {
	n, err := u.conn.Write(u.composed.Bytes())
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if err = u.patient(); err == nil {
			_, err = u.conn.Write(u.composed.Bytes()[n:])
		}
	}
	return err
}

// Read reads what has come. What the client has not been sent yet goes out
// before it waits, so nothing is ever held back for what is to come.
func (u *upConn) Read(b []byte) (int, error) {
	if u.head == 0 {
		return 0, errHeadTooLarge
	}
	if err := u.x.flush(); err != nil {
		return 0, err
	}
	if u.head > 0 {
		b = b[:min(len(b), u.head)]
	}
	n, err := u.conn.Read(b)
	if n == 0 && err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		if err = u.patient(); err == nil {
			n, err = u.conn.Read(b)
		}
	}
	u.heard = u.heard || n > 0
	if u.head > 0 {
		u.head -= n
	}
	return n, err
}

// quiet says whether an idle connection is as it should be: open, and nothing
// has come that nobody asked for.
func quiet(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	var b [1]byte
	var inner error
	err = raw.Control(func(fd uintptr) {
		_, _, inner = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT) // #nosec G115 -- a descriptor
	})
	return err == nil && errors.Is(inner, unix.EAGAIN)
}

// close ends it.
func (u *upConn) close() {
	u.pool.mu.Lock()
	delete(u.pool.open, u)
	u.pool.mu.Unlock()
	_ = u.conn.Close()
}

// upstreams keeps connections between exchanges, for each target its own.
type upstreams struct {
	mu     sync.Mutex
	open   map[*upConn]bool // idle or not
	idle   map[string][]*upConn
	n      int         // idle
	sweeps *time.Timer // nil: none is due
	closed bool
}

// add takes a connection to a target over, for an exchange.
func (p *upstreams) add(conn net.Conn, to string) (*upConn, error) {
	u := &upConn{conn: conn, pool: p, to: to}
	u.r = bufio.NewReader(u)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	p.open[u] = true
	return u, nil
}

// take gives an idle connection to a target, the one used last; nil: there is none.
func (p *upstreams) take(to string) *upConn {
	for {
		p.mu.Lock()
		list := p.idle[to]
		if len(list) == 0 {
			p.mu.Unlock()
			return nil
		}
		u := list[len(list)-1]
		list[len(list)-1] = nil
		p.idle[to] = list[:len(list)-1]
		p.n--
		p.mu.Unlock()
		if quiet(u.conn) {
			return u
		}
		u.close()
	}
}

// keep takes a connection back whose exchange is over, to the last byte.
func (p *upstreams) keep(u *upConn) {
	u.x = nil
	if u.composed.Cap() > keptComposed {
		u.composed = bytes.Buffer{}
	}
	u.since = time.Now()
	p.mu.Lock()
	list := p.idle[u.to]
	full := p.closed || len(list) >= maxIdleUp || p.n >= maxIdle
	if !full {
		p.idle[u.to] = append(list, u)
		p.n++
		if p.sweeps == nil {
			p.sweeps = time.AfterFunc(sweepEvery, p.sweep)
		}
	}
	p.mu.Unlock()
	if full {
		u.close()
	}
}

// sweep closes what was idle for too long or has ended, as long as there is any.
func (p *upstreams) sweep() {
	var gone []*upConn
	p.mu.Lock()
	for to, list := range p.idle {
		var stay []*upConn
		for _, u := range list {
			if time.Since(u.since) < idleUp && quiet(u.conn) {
				stay = append(stay, u)
			} else {
				gone = append(gone, u)
			}
		}
		if p.idle[to] = stay; len(stay) == 0 {
			delete(p.idle, to)
		}
	}
	p.n -= len(gone)
	if p.sweeps = nil; p.n > 0 {
		p.sweeps = time.AfterFunc(sweepEvery, p.sweep)
	}
	p.mu.Unlock()
	for _, u := range gone {
		u.close()
	}
}

// close ends all of them, those at work included.
func (p *upstreams) close() {
	p.mu.Lock()
	p.closed, p.idle, p.n = true, nil, 0
	if p.sweeps != nil {
		p.sweeps.Stop()
	}
	open := p.open
	p.open = map[*upConn]bool{}
	p.mu.Unlock()
	for u := range open {
		_ = u.conn.Close()
	}
}
