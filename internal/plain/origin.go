package plain

import (
	"net/http"
	"net/netip"
	"net/url"

	"bulkhead/internal/wire"
)

// Foreign says whether a page of another site makes the request: browsers tell
// by Origin, and MCP wants it checked (2025-11-25, transports, security warning).
func Foreign(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	if err != nil {
		return true
	}
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); err == nil {
		return !ip.IsLoopback()
	}
	return host != "localhost" && host != wire.OwnName
}
