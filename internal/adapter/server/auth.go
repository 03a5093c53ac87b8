package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/identity"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// target is what records of connections name.
const target = "adapter.sock"

// serve is one connection, from its peer's id to its end.
func (p *port) serve(ctx context.Context, u *net.UnixConn) {
	w := wire.New(u)
	if r := p.peer(u); r != nil {
		p.refuse(r)
		_ = w.Close()
		return
	}
	if err := p.admit(w); err != nil {
		_ = w.Close()
		return
	}
	c, err := protocol.NewConn(w)
	if err != nil {
		_ = w.Close()
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	newSession(p, c).run(ctx)
}

// peer says why the one who connected is not heard.
func (p *port) peer(u *net.UnixConn) *deny.Reason {
	peer, err := identity.PeerOf(u)
	why := ""
	switch {
	case err != nil:
		why = "the kernel does not say who connected: " + err.Error()
	case peer.UID == identity.Overflow:
		why = "the overflow id 65534 connected, which stands for anybody"
	case p.agent == "" && peer.UID != 0:
		why = fmt.Sprintf("id %d connected to the operator's socket, which is root's", peer.UID)
	case p.agent != "" && peer.UID != p.id:
		why = fmt.Sprintf("id %d connected, not %d, the gateway of %s", peer.UID, p.id, p.agent)
	default:
		return nil
	}
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.BadPeer, What: target + " of " + p.name(), Why: why,
		Mend: "nothing: only the agent's own gateway may speak to the adapter for it",
	}
}

// admit says hello, and asks an agent's gateway for its token.
func (p *port) admit(w *wire.Conn) error {
	if _, err := w.Greet(protocol.Name, protocol.Version); err != nil {
		return err
	}
	if p.agent == "" {
		return nil
	}
	if err := w.Unix().SetDeadline(time.Now().Add(authTimeout)); err != nil {
		return err
	}
	m, files, err := w.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return err
	}
	if !p.proves(m) {
		r := &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.BadToken, What: target + " of " + p.name(),
			Why: "the first request is not auth with the token of this agent's gateway", Mend: "nothing: the gateway is given the right token by the warden",
		}
		p.refuse(r)
		_ = w.Send(m.ID, protocol.VerbDenied, r)
		return r
	}
	if err := w.Send(m.ID, protocol.VerbOK, struct{}{}); err != nil {
		return err
	}
	return w.Unix().SetDeadline(time.Time{})
}

// proves compares hashes, in constant time.
func (p *port) proves(m wire.Message) bool {
	var a protocol.Auth
	if m.Verb != protocol.VerbAuth || json.Unmarshal(m.Body, &a) != nil {
		return false
	}
	sum := sha256.Sum256([]byte(a.Token))
	return subtle.ConstantTimeCompare(sum[:], p.tokenHash[:]) == 1
}

// refuse writes a refused connection down and alerts.
func (p *port) refuse(r *deny.Reason) {
	p.metrics.denied.With(p.name(), string(r.Code)).Add(1)
	if p.log.Add(p.name(), record.Message, target, record.Denied, r) {
		p.alerts.add(p.name(), r)
	}
}
