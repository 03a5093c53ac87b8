package proxy

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"bulkhead/internal/dial"
	"bulkhead/internal/plain"
)

// clientConn is a client's connection that speaks HTTP, as net/http's server has
// it. Until its first request that is not plain it serves itself: the server
// waits in its first Read meanwhile, and hears of nothing but what is left to
// it. A plain request then costs no goroutine, no channel and no second
// parsing; whatever takes deciding is net/http's from its first byte on, as is
// all that follows.
type clientConn struct {
	*slotConn
	first  []byte  // of a tunnel: what was read before
	tunnel *target // every request is for it; nil: this is the proxy itself
	own    bool    // a tunnel to Config.Own, and no target
	left   bool    // to net/http

	// spare was dialled for a tunnel, before what its client said turned out to
	// be HTTP. It is the client's, and ends with it: so it counts by its slot.
	spare atomic.Pointer[net.Conn]
}

// spared gives the connection that was dialled for the tunnel, once. nil: there
// is none, or it is not as it should be.
func (c *clientConn) spared() net.Conn {
	up := c.spare.Swap(nil)
	if up == nil {
		return nil
	}
	if !quiet(*up) {
		_ = (*up).Close()
		return nil
	}
	return *up
}

// Close closes the connection, and the one that was left for its first request.
func (c *clientConn) Close() error {
	if up := c.spare.Swap(nil); up != nil {
		_ = (*up).Close()
	}
	return c.slotConn.Close()
}

// Read gives what is net/http's.
func (c *clientConn) Read(b []byte) (int, error) {
	if c.left {
		return c.read(b)
	}
	c.left = true // nothing was given to anybody yet, so no request is at work
	if c.own || c.p.careful {
		return c.read(b)
	}
	return c.serve(b)
}

// read gives what was read before, then the rest.
func (c *clientConn) read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.stream.Read(b)
}

// serve answers plain requests, with b to read into, and gives what is not one.
func (c *clientConn) serve(b []byte) (n int, err error) {
	timed := true // the deadline is that of a request's head: the server has set it
	begun := func() {
		if !timed {
			timed = true
			_ = c.SetReadDeadline(time.Now().Add(headerTimeout))
		}
	}
	for {
		var end int
		if n, end, err = plain.Head(b, n, plain.MayGet, begun, c.read); err != nil {
			return n, err
		}
		r, t := c.understood(b[:end])
		if r == nil {
			begun()
			return n, nil
		}
		n = copy(b, b[end:n])
		x := exchange{p: c.p, c: c, r: r, t: t, ahead: b[n:]}
		keep := x.do()
		if n += x.read; !keep {
			return 0, io.EOF
		}
		timed = false
		_ = c.SetReadDeadline(time.Now().Add(idleTimeout))
	}
}

// understood gives the request that head is and where it goes, if it is plain
// and allowed.
func (c *clientConn) understood(head []byte) (*http.Request, target) {
	if len(head) == 0 {
		return nil, target{}
	}
	r := plain.Get(head)
	if r == nil {
		return nil, target{}
	}
	if c.tunnel != nil {
		t := *c.tunnel
		host, port, err := split(r.Host, strconv.Itoa(int(t.port)))
		if err != nil || r.URL.Host != "" || r.URL.Scheme != "" || !t.byName() || port != t.port {
			return nil, target{}
		}
		if h, err := dial.Normalise(host); err != nil || h != t.host {
			return nil, target{}
		}
		return r, t
	}
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		return nil, target{}
	}
	host, port, err := split(r.URL.Host, "80")
	if err != nil || c.p.isOwn(host, port) {
		return nil, target{}
	}
	t, reason := c.p.target(host, port)
	if reason != nil || !t.byName() || t.port == 443 {
		return nil, target{}
	}
	return r, t
}

// clients is a listener of connections that speak HTTP.
type clients struct{ limited }

// Accept waits for a connection that has a slot.
func (l *clients) Accept() (net.Conn, error) {
	c, err := l.limited.Accept()
	if err != nil {
		return nil, err
	}
	return &clientConn{slotConn: c.(*slotConn)}, nil
}
