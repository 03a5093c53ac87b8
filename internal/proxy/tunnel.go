package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/socket"
)

// spliceAfter is how many bytes of a stream are copied before the kernel does.
const spliceAfter = 64 << 10

// alert is what a TLS client gets when its server name is refused: a fatal
// unrecognized_name (RFC 8446, 6.2; RFC 6066, 3).
var alert = []byte{0x15, 3, 3, 0, 2, 2, 112}

// halfClosed is how long a server may go on after its client has said all. A
// client that is gone altogether looks the same until something is sent to it.
const halfClosed = 10 * time.Minute

// tunnel carries bytes both ways between c and up, both of which it closes or
// hands on. early is what the client said already.
func (p *Proxy) tunnel(c *slotConn, early []byte, up net.Conn, t target) {
	down := make(chan struct{})
	var answered int64
	var ended atomic.Bool // one of the two directions
	p.work.Go(func() {
		defer close(down)
		n, err := p.copy(c.stream, up) // the server may speak first
		answered = n
		// When it was called off the client hears more; when its own direction has
		// ended already the connection is about to be closed.
		if !errors.Is(err, os.ErrDeadlineExceeded) && !ended.Swap(true) {
			_ = c.CloseWrite()
		}
	})
	first, kind, reason := firstBytes(c, early, t)
	if reason == nil && kind != kindHTTP {
		p.cfg.Record(t.String(), record.Allowed, nil)
		p.upstream(c, up, first, &ended, t)
		<-down
		_ = up.Close()
		_ = c.Close()
		return
	}
	_ = up.SetReadDeadline(time.Unix(1, 0))
	<-down
	if reason == nil && answered > 0 {
		reason = &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NameMismatch, What: t.String(), Why: "the server spoke before the client's HTTP request, so it is not HTTP",
			Mend: "mark the destination with `sni: any` in bulkhead.yaml if that is right",
		}
	}
	if reason != nil {
		p.recordReason(t.String(), reason)
		if kind == kindTLS {
			_, _ = c.Write(alert)
		}
		_ = up.Close()
		_ = c.Close()
		return
	}
	_ = up.SetReadDeadline(time.Time{})
	next := &clientConn{slotConn: c, first: first, tunnel: &t}
	next.spare.Store(&up)
	p.origin.put(next)
}

// upstream sends what the client said and says, until it ends.
func (p *Proxy) upstream(c *slotConn, up net.Conn, first []byte, ended *atomic.Bool, t target) {
	if len(first) > 0 {
		if _, err := up.Write(first); err != nil {
			_ = up.Close()
			return
		}
		if t.byName() && mayBecome(first) && !restOfLine(up, c.stream, first) {
			_ = up.Close()
			p.recordReason(t.String(), became(t))
			return
		}
	}
	_, err := p.copy(up, c.stream)
	if ended.Swap(true) {
		_ = up.Close() // the server has said all before
		return
	}
	if w, ok := up.(interface{ CloseWrite() error }); ok && err == nil {
		_ = w.CloseWrite()
		_ = up.SetReadDeadline(time.Now().Add(halfClosed))
		return
	}
	_ = up.Close() // the client is gone, or cannot be reached any more
}

// copy moves bytes until from ends: the first ones by a buffer, which is
// cheaper for the many short tunnels, a longer stream by splice(2).
func (p *Proxy) copy(to, from net.Conn) (int64, error) {
	b := p.small.Get().(*[]byte)
	defer p.small.Put(b)
	var n int64
	for n < spliceAfter {
		m, err := from.Read(*b)
		if m > 0 {
			if _, werr := to.Write((*b)[:m]); werr != nil {
				return n, werr
			}
			n += int64(m)
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	m, err := rest(to, from)
	return n + m, err
}

// rest moves what is left of a long stream.
func rest(to, from net.Conn) (int64, error) {
	t, ok := to.(syscall.Conn)
	f, both := from.(syscall.Conn)
	if !ok || !both {
		return io.Copy(to, from)
	}
	return socket.Splice(t, f)
}
