package proxy

import (
	"net"
	"sync"
	"time"
)

// limited hands out connections while there are slots; beyond that a new one
// is closed at once, so that nothing waits unseen.
type limited struct {
	net.Listener
	p *Proxy
}

// Accept waits for a connection that has a slot.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if temporary(err) {
				time.Sleep(20 * time.Millisecond) // until descriptors are free again
				continue
			}
			return nil, err
		}
		inner, ok := c.(stream)
		if !ok {
			_ = c.Close()
			continue
		}
		select {
		case l.p.slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		s := &slotConn{stream: inner, p: l.p}
		l.p.mu.Lock()
		l.p.open[s] = true
		l.p.mu.Unlock()
		return s, nil
	}
}

// stream is a TCP connection, or a unix one that relays it.
type stream interface {
	net.Conn
	CloseWrite() error
}

// slotConn gives its slot back when it is closed. Its stream is copied from
// and to directly, so that the kernel can splice.
type slotConn struct {
	stream
	p    *Proxy
	once sync.Once
}

// Close closes the connection, once.
func (c *slotConn) Close() error {
	err := c.stream.Close()
	c.once.Do(func() {
		c.p.mu.Lock()
		delete(c.p.open, c)
		c.p.mu.Unlock()
		<-c.p.slots
	})
	return err
}

// handover is a listener whose connections are made by put.
type handover struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handover) put(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.done:
		_ = c.Close()
	}
}

// Accept gives the next connection.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr is nobody's address.
func (h *handover) Addr() net.Addr { return &net.TCPAddr{} }
