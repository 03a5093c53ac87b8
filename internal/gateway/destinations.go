package gateway

import (
	"context"
	"net"
	"net/netip"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
)

// approved connects to a destination by f, after a person approved it when the manifest
// asks for that. What cannot be asked is refused.
func (b *toolbox) approved(ctx context.Context, host string, port uint16, f func() (net.Conn, error)) (net.Conn, error) {
	ask := b.means.cfg.Ask
	if ask == nil || len(ask.Egress) == 0 {
		return f()
	}
	h, err := dial.Normalise(host)
	if err != nil {
		return nil, err
	}
	if !ask.Reaches(h.String(), port) {
		return f()
	}
	set, reason := b.get(ctx)
	if reason != nil {
		return nil, reason
	}
	return set.destinations.Dial(ctx, h, port, f)
}

// resolve gives the addresses that a connection would use. A lookup tells the name's
// owner something, so a destination that is asked for is looked up once it is granted.
func (s *Server) resolve(ctx context.Context, host string, port uint16) ([]netip.Addr, error) {
	h, err := dial.Normalise(host)
	if err != nil {
		return nil, err
	}
	if s.cfg.Ask.Reaches(h.String(), port) {
		set, reason := s.tools.get(ctx)
		if reason != nil {
			return nil, reason
		}
		if to := dial.Target(h, port); !set.destinations.Granted(to) {
			return nil, &deny.Reason{
				Layer: deny.LayerEgress, Code: deny.EgressApproval, What: to,
				Why: "a person approves this destination first (ask.egress), and it is not looked up before", Mend: "connect to it: that asks the person",
			}
		}
	}
	return s.dialer.Addresses(ctx, host, port)
}
