package gateway

import (
	"context"
	"errors"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	front "bulkhead/internal/front/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/wire"
)

// Waiting for front, which is started again by the warden when it ends.
const (
	frontBackoff    = 10 * time.Millisecond // a guest's gateway is let in a moment after its start
	frontMaxBackoff = 5 * time.Second
	frontConns      = 64 // at a time
)

// fromFront serves what front passes on, until ctx ends. The gateway connects
// out: inside its user namespace front's id would be nobody's, so only front
// can tell who is at the other end (docs/decisions/0071).
func (s *Server) fromFront(ctx context.Context) {
	conns := &handed{conns: make(chan net.Conn), done: ctx.Done()}
	server := &http.Server{
		Handler: s.api.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog:    stdlog.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context { return fromFrontContext(ctx) },
	}
	var work sync.WaitGroup
	work.Go(func() { _ = server.Serve(conns) })
	defer work.Wait()
	defer func() { _ = server.Close() }()
	wait := frontBackoff
	for ctx.Err() == nil {
		if s.takeFromFront(ctx, conns) {
			wait = frontBackoff
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, frontMaxBackoff)
	}
}

// takeFromFront takes connections for as long as front is there, and says
// whether it was.
func (s *Server) takeFromFront(ctx context.Context, to *handed) bool {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", s.cfg.Front.Socket)
	if err != nil {
		return false
	}
	u, ok := nc.(*net.UnixConn)
	if !ok {
		_ = nc.Close()
		return false
	}
	c := wire.New(u)
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = u.Close() })
	defer stop()
	_ = u.SetDeadline(time.Now().Add(peekTimeout))
	if hub.Dial(c, front.Name, front.Version, s.cfg.Front.Token) != nil {
		return false
	}
	_ = u.SetDeadline(time.Time{})
	slots := make(chan struct{}, frontConns)
	for {
		m, files, err := c.Recv()
		if err != nil {
			return true
		}
		if m.Verb != front.VerbConnection || len(files) != 1 {
			closeFiles(files)
			return true
		}
		conn, err := net.FileConn(files[0])
		closeFiles(files)
		if err != nil {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = conn.Close() // front asks for no more than it may
			continue
		}
		one := &ending{Conn: conn, done: make(chan struct{})}
		select {
		case to.conns <- one:
			go func() { <-one.done; <-slots }()
		case <-ctx.Done():
			_ = conn.Close()
			return true
		}
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// handed is a listener of connections that come as descriptors.
type handed struct {
	conns chan net.Conn
	done  <-chan struct{}
}

// Accept implements net.Listener.
func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, errors.Join(net.ErrClosed, http.ErrServerClosed)
	}
}

// Close implements net.Listener; the gateway's end closes it.
func (h *handed) Close() error { return nil }

// Addr is nobody's address.
func (h *handed) Addr() net.Addr { return &net.UnixAddr{Name: "front", Net: "unix"} }
