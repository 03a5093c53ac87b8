package gateway

import (
	"encoding/json"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"time"
)

// health answers HTTP on gateway.sock. It is the place of the agent's tools.
type health struct {
	server *http.Server
	conns  chan net.Conn
	done   chan struct{}
	once   sync.Once
	work   sync.WaitGroup
}

func newHealth(s *Server) *health {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		n := s.listeners
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"schemaVersion": 1, "status": "ok", "team": s.cfg.Team, "agent": s.cfg.Agent, "listeners": n,
		})
	})
	h := &health{
		server: &http.Server{
			Handler: http.MaxBytesHandler(mux, 1<<20), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
			MaxHeaderBytes: 16 << 10, ErrorLog: stdlog.New(io.Discard, "", 0),
		},
		conns: make(chan net.Conn), done: make(chan struct{}),
	}
	h.work.Go(func() { _ = h.server.Serve(h) })
	return h
}

// serve hands the connection to the server and waits for its end, so that the
// peer's slot is held meanwhile.
func (h *health) serve(c net.Conn) {
	ended := &ending{Conn: c, done: make(chan struct{})}
	select {
	case h.conns <- ended:
		<-ended.done
	case <-h.done:
		_ = c.Close()
	}
}

type ending struct {
	net.Conn
	once sync.Once
	done chan struct{}
}

// Close tells that the connection has ended.
func (e *ending) Close() error {
	err := e.Conn.Close()
	e.once.Do(func() { close(e.done) })
	return err
}

// Accept makes health a net.Listener of what serve is given.
func (h *health) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (h *health) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr is nobody's address.
func (h *health) Addr() net.Addr { return &net.UnixAddr{Name: "gateway.sock", Net: "unix"} }

func (h *health) close() error {
	_ = h.Close()
	err := h.server.Close()
	h.work.Wait()
	return err
}
