package dialer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// maxPins bounds the cache; beyond it the oldest to expire goes.
const maxPins = 1024

// askTimeout is longer than the warden's own limit for a DNS answer.
const askTimeout = 10 * time.Second

// pins is the dialer's side of the pin protocol: a cache with one connection.
type pins struct {
	path  string
	relay bool                // whether VerbProxied can be kept
	ended func(target string) // hears of what is no longer allowed, "name:port"

	unpins atomic.Uint64 // VerbUnpins so far

	connecting sync.Mutex // one attempt at a time; taken before mu

	mu      sync.Mutex
	cache   map[wire.DialRequest]cached
	asking  map[wire.DialRequest]*question // one question at a time for each destination
	conn    *wire.Conn                     // nil: not connected
	next    uint64
	waiting map[uint64]*question
	work    sync.WaitGroup
	closed  bool
	again   chan struct{} // closed with it
}

type cached struct {
	wire.Pinned
	renew time.Time // ask again, in the background, after this
}

// question is one unanswered VerbPin.
type question struct {
	what   wire.DialRequest
	conn   *wire.Conn // over which it was sent; guarded by pins.mu
	done   chan struct{}
	pinned wire.Pinned
	reason *deny.Reason
}

func newPins(path string, relay bool, ended func(string)) *pins {
	return &pins{path: path, relay: relay, ended: ended, again: make(chan struct{}), cache: map[wire.DialRequest]cached{}, asking: map[wire.DialRequest]*question{}, waiting: map[uint64]*question{}}
}

// get gives addresses to connect to, and whether they come from the cache.
func (p *pins) get(ctx context.Context, what wire.DialRequest) (wire.Pinned, bool, *deny.Reason) {
	now := time.Now()
	p.mu.Lock()
	c, ok := p.cache[what]
	p.mu.Unlock()
	if ok && now.Before(c.Expires) {
		if now.After(c.renew) {
			p.ask(what) // its answer goes to the cache
		}
		return c.Pinned, true, nil
	}
	return p.fresh(ctx, what)
}

// fresh asks the warden and waits.
func (p *pins) fresh(ctx context.Context, what wire.DialRequest) (wire.Pinned, bool, *deny.Reason) {
	q := p.ask(what)
	timer := time.NewTimer(askTimeout)
	defer timer.Stop()
	select {
	case <-q.done:
		return q.pinned, false, q.reason
	case <-ctx.Done():
		return wire.Pinned{}, false, away(what, ctx.Err())
	case <-timer.C:
		return wire.Pinned{}, false, away(what, context.DeadlineExceeded)
	}
}

// forget drops a destination, so that the next get asks.
func (p *pins) forget(what wire.DialRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.cache, what)
}

// ask puts one question unless the same one is open already.
func (p *pins) ask(what wire.DialRequest) *question {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.asking[what]; q != nil {
		return q
	}
	q := &question{what: what, done: make(chan struct{})}
	if p.closed {
		q.reason = away(what, net.ErrClosed)
		close(q.done)
		return q
	}
	p.asking[what] = q
	p.work.Go(func() { p.send(q) })
	return q
}

// send sends a question, connecting first when there is no connection. A
// warden that hangs keeps only those waiting who ask: not those whom the cache
// serves.
func (p *pins) send(q *question) {
	var err error
	for range 2 { // a connection may be dead without our knowing: once more
		var conn *wire.Conn
		if conn, err = p.connect(); err != nil {
			break
		}
		p.mu.Lock()
		p.next++
		id := p.next
		p.waiting[id], q.conn = q, conn
		p.mu.Unlock()
		if err = conn.Send(id, wire.VerbPin, q.what); err == nil {
			return
		}
		p.mu.Lock()
		_, mine := p.waiting[id] // else the reader was faster, and has answered
		delete(p.waiting, id)
		if p.conn == conn {
			p.conn = nil
		}
		p.mu.Unlock()
		_ = conn.Close()
		if !mine {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked(q, err)
}

func (p *pins) failLocked(q *question, err error) {
	if p.asking[q.what] != q {
		return // answered meanwhile
	}
	delete(p.asking, q.what)
	q.reason = away(q.what, err)
	close(q.done)
}

func (p *pins) connect() (*wire.Conn, error) {
	p.connecting.Lock()
	defer p.connecting.Unlock()
	p.mu.Lock()
	conn, closed := p.conn, p.closed
	p.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	if closed {
		return nil, net.ErrClosed
	}
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	conn = wire.New(raw)
	if _, err := conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		_ = conn.Close()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	p.conn = conn
	p.work.Go(func() { p.read(conn) })
	return conn, nil
}

// read takes answers until the connection is lost.
func (p *pins) read(conn *wire.Conn) {
	for {
		m, files, err := conn.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		if err == nil {
			err = p.take(m)
		}
		if err == nil {
			continue
		}
		_ = conn.Close()
		p.mu.Lock()
		if p.conn == conn {
			p.conn = nil
		}
		if p.relay && !p.closed {
			p.work.Go(p.reconnect)
		}
		for id, q := range p.waiting {
			if q.conn == conn {
				delete(p.waiting, id)
				p.failLocked(q, err)
			}
		}
		p.mu.Unlock()
		return
	}
}

// reconnect is for a dialer that relays: it has to hear of what is no longer
// allowed although nobody asks, because the kernel does not cut it.
func (p *pins) reconnect() {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if _, err := p.connect(); err == nil {
			return
		}
		select {
		case <-p.again:
			return
		case <-time.After(wait):
		}
	}
}

func (p *pins) take(m wire.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Verb == wire.VerbUnpin {
		var what wire.DialRequest
		if err := json.Unmarshal(m.Body, &what); err != nil {
			return err
		}
		for key := range p.cache { // the warden writes names in their normal form, clients may not
			if key.Port == what.Port {
				delete(p.cache, key)
			}
		}
		p.unpins.Add(1)
		p.ended(net.JoinHostPort(what.Host, strconv.Itoa(int(what.Port))))
		return nil
	}
	q := p.waiting[m.ID]
	if q == nil {
		return nil
	}
	delete(p.waiting, m.ID)
	delete(p.asking, q.what)
	defer close(q.done)
	switch m.Verb {
	case wire.VerbPinned, wire.VerbProxied:
		if err := json.Unmarshal(m.Body, &q.pinned); err != nil || len(q.pinned.Addresses) == 0 || (q.pinned.Via != nil) != (m.Verb == wire.VerbProxied) {
			q.reason = away(q.what, errors.New("the warden's answer is unreadable"))
			return nil
		}
		if q.pinned.Via != nil && !p.relay {
			q.reason = away(q.what, errors.New("it leads through a proxy, and this dialer was not started to relay"))
			return nil
		}
		p.storeLocked(q.what, q.pinned)
	case wire.VerbDenied:
		var d wire.Denied
		if err := json.Unmarshal(m.Body, &d); err != nil {
			q.reason = away(q.what, err)
			return nil
		}
		q.reason = &d.Reason
		delete(p.cache, q.what)
	default:
		q.reason = away(q.what, fmt.Errorf("the warden answered %q", m.Verb))
	}
	return nil
}

func (p *pins) storeLocked(what wire.DialRequest, pinned wire.Pinned) {
	if len(p.cache) >= maxPins {
		var oldest wire.DialRequest
		var at time.Time
		for k, c := range p.cache {
			if at.IsZero() || c.Expires.Before(at) {
				oldest, at = k, c.Expires
			}
		}
		delete(p.cache, oldest)
	}
	now := time.Now()
	// The kernel's clock started before ours: leave the last tenth unused.
	left := pinned.Expires.Sub(now)
	pinned.Expires = now.Add(left * 9 / 10)
	p.cache[what] = cached{pinned, now.Add(left / 2)}
}

// close ends the connection and waits for its reader.
func (p *pins) close() {
	p.mu.Lock()
	p.closed = true
	close(p.again)
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}

func away(what wire.DialRequest, err error) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.PinFailed, What: fmt.Sprintf("%.300s:%d", what.Host, what.Port),
		Why: fmt.Sprintf("the warden, which opens the way for a new destination, does not answer (%v)", err), Mend: "try again; when it stays, start the warden on the host",
	}
}
