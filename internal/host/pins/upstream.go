package pins

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// behindPrefix begins what the kernel's elements are for that lead to a proxy.
// No destination begins so: none has a space.
const behindPrefix = "proxy "

func behind(proxy string) string { return behindPrefix + proxy }

// decideUpstream finds the proxy's addresses. The destination's own name is
// asked of nobody here: the proxy looks it up.
func (s *Server) decideUpstream(ctx context.Context, v verdict) (verdict, *deny.Reason) {
	u := v.upstream
	if u.Address.IsValid() {
		v.addrs = []netip.Addr{u.Address}
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var err error
	if v.answer, err = s.cache.lookup(ctx, u.Host); err != nil {
		r := unresolved(v.target, u.Host, err)
		r.Why = "it is reached through the upstream proxy " + u.URL() + ", and " + r.Why
		r.Mend = "check upstreamProxy.url in bulkhead.yaml and the host's DNS servers; or write the proxy's address there"
		return v, r
	}
	own, err := s.cfg.Own()
	if err != nil {
		return v, pinFailed(v.target, fmt.Errorf("this host's own addresses cannot be read: %w", err))
	}
	var reason *deny.Reason
	v.addrs, reason = dial.UpstreamAddresses(u, v.answer.addrs, own)
	return v, reason
}

// via tells the dialer what to ask the proxy for, and with which credentials.
func (s *Server) via(v verdict) (*wire.Via, *deny.Reason) {
	out := &wire.Via{Proxy: v.upstream.Target(), Target: v.target}
	if v.upstream.Credentials.Path == "" {
		return out, nil
	}
	err := errors.New("this warden reads none")
	if s.cfg.Authorization != nil {
		out.Authorization, err = s.cfg.Authorization(v.upstream)
	}
	if err != nil {
		return nil, &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.PinFailed, What: v.target,
			Why:  "the credentials of the upstream proxy " + v.upstream.URL() + " cannot be used, so nothing may pass: " + err.Error(),
			Mend: "mend the file that upstreamProxy.credentialsFile names: one line user:password, owned by root, mode 0600",
		}
	}
	return out, nil
}

// endBehind tells the dialer of temporary destinations that are over. Behind a
// proxy the kernel cannot end their connections: it sees the proxy alone.
func (a *agent) endBehind(old, p *dial.Policy) {
	if !old.Relays() && !p.Relays() {
		return
	}
	for _, what := range old.Grants() {
		_, keeps := p.Keeps(what.Host, what.Port)
		a.mu.Lock()
		if keeps {
			delete(a.ended, what)
		} else {
			a.ended[what] = true
		}
		a.mu.Unlock()
		if !keeps {
			a.tell(what)
		}
	}
	for _, what := range p.Grants() {
		a.mu.Lock()
		delete(a.ended, what)
		a.mu.Unlock()
	}
}

// Upstream tells the proxy by which an agent's destination is reached, for
// those who explain; nil: by itself.
func (s *Server) Upstream(account, host string, d team.Destination) *team.Upstream {
	s.mu.Lock()
	a := s.agents[account]
	s.mu.Unlock()
	if a == nil {
		return nil
	}
	return a.policy.Load().Upstream(host, d)
}
