package proxy

import (
	"net/http"
	"strconv"
	"strings"

	"bulkhead/internal/wire"
)

// isOwn says whether a request is for the gateway itself. The name is taken
// whatever a manifest lists: a server of that name would get the token.
func (p *Proxy) isOwn(host string, port uint16) bool {
	return p.cfg.Own != nil && strings.EqualFold(strings.TrimSuffix(host, "."), wire.OwnName) && port == wire.OwnPort
}

// own says whether a request that is not CONNECT is for the gateway itself: in
// absolute form through the proxy, or in origin form by a client that was led
// to the listener by the runtime's hosts file.
func (p *Proxy) own(r *http.Request) bool {
	if r.Method == http.MethodConnect || p.cfg.Own == nil {
		return false
	}
	authority := r.URL.Host
	switch {
	case authority == "":
		authority = r.Host
	case r.URL.Scheme != "http" || r.URL.User != nil || r.URL.Opaque != "":
		return false
	}
	host, port, err := split(authority, strconv.Itoa(wire.OwnPort))
	return err == nil && p.isOwn(host, port)
}

// connectOwn opens a tunnel to the gateway itself: what the client says in it
// is served like any request.
func (p *Proxy) connectOwn(w http.ResponseWriter) {
	c, early, err := established(w)
	if err != nil {
		return
	}
	p.origin.put(&clientConn{slotConn: c, first: early, own: true})
}

// inOwnTunnel serves a request whose Host is right, as in every tunnel.
func (p *Proxy) inOwnTunnel(w http.ResponseWriter, r *http.Request) {
	host, port, err := split(r.Host, strconv.Itoa(wire.OwnPort))
	if err != nil || r.Method == http.MethodConnect || !p.isOwn(host, port) {
		p.refuse(w, badRequest(r.Method+" inside a tunnel to "+wire.OwnName, "every request in it names that host"))
		return
	}
	p.cfg.Own.ServeHTTP(w, r)
}
