package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// A runtime whose kernel lets no descriptor out (gVisor) keeps its listeners
// and asks for each of its connections by wire.VerbRelay. From then on such a
// connection is served as if it had been accepted from a listener for that
// target, with the same checks and the same bound.

// relay takes over one connection, or says why not. free gives back its slot of
// gateway.sock: the proxy counts it from now on.
func (s *Server) relay(ctx context.Context, c *wire.Conn, m wire.Message, free func()) (taken bool) {
	t, err := s.relayTarget(m)
	if err != nil {
		_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: err.Error()})
		return false
	}
	if c.Send(m.ID, wire.VerbOK, struct{}{}) != nil {
		return false
	}
	free()
	ln := &single{c: c.Unix()}
	if t.host == "" {
		_ = s.proxy.ServeProxy(ln)
	} else {
		_ = s.proxy.ServeStatic(ctx, ln, t.host, t.port)
	}
	return ln.given // else it ends here: this gateway is shutting down
}

func (s *Server) relayTarget(m wire.Message) (target, error) {
	var q wire.RelayRequest
	if err := json.Unmarshal(m.Body, &q); err != nil {
		return target{}, fmt.Errorf("gateway: request: %w", err)
	}
	if err := s.authorise(q.Token); err != nil {
		return target{}, err
	}
	t, err := s.target(q.Target)
	if err != nil {
		return target{}, fmt.Errorf("gateway: relay for %.80q: %w", q.Target, err)
	}
	return t, nil
}

// authorise says whether this is the runtime's token.
func (s *Server) authorise(token string) error {
	given := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(given[:], s.token[:]) == 1 {
		return nil
	}
	r := &deny.Reason{
		Layer: deny.LayerPod, Code: deny.BadToken, What: "gateway.sock", Why: "the token is not this runtime's",
		Mend: "nothing: the shim is given the right token by the warden",
	}
	s.record("gateway.sock", record.Denied, r)
	return r
}

// single is a listener that has one connection and then is closed.
type single struct {
	c     net.Conn
	given bool
}

func (l *single) Accept() (net.Conn, error) {
	if l.given {
		return nil, net.ErrClosed
	}
	l.given = true
	return l.c, nil
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return l.c.LocalAddr() }

// elsewhere stands for a listener that its runtime has kept.
type elsewhere struct{ net.Listener }

// Close has nothing to close.
func (elsewhere) Close() error { return nil }
