package pins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/resolver"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// maxAddresses bounds how many addresses of one destination are pinned.
const maxAddresses = 8

// lookupTimeout is a little more than the resolver's own.
const lookupTimeout = resolver.LookupTimeout + time.Second

// onceTTL is how long the kernel lets new connections to a destination begin
// that is granted for one: it knows addresses, not how many came before.
const onceTTL = 10 * time.Second

// asker is who wants a pin.
type asker bool

const (
	dialers   asker = false
	operators asker = true // an acknowledgement: it uses no grant up
)

// attempts is how often a request is tried anew when the policy changes below it.
const attempts = 5

// pin answers one request.
func (s *Server) pin(ctx context.Context, a *agent, q wire.DialRequest, by asker) (wire.Pinned, *deny.Reason) {
	for range attempts {
		out, reason, done := s.tryPin(ctx, a, q, by)
		if done {
			return out, reason
		}
	}
	return wire.Pinned{}, pinFailed(q.Host, errors.New("the manifest changes too fast"))
}

// tryPin is the whole way from a request to the kernel. It is not done when
// the policy was replaced before the pin was made.
func (s *Server) tryPin(ctx context.Context, a *agent, q wire.DialRequest, by asker) (_ wire.Pinned, _ *deny.Reason, done bool) {
	policy := a.policy.Load()
	v, reason := s.decide(ctx, policy, q)
	if reason != nil {
		return wire.Pinned{}, reason, true
	}
	out := wire.Pinned{Stale: v.answer.stale, Age: v.answer.age}
	port := q.Port
	if v.upstream != nil {
		port = v.upstream.Port
	}
	for _, addr := range v.addrs[:min(len(v.addrs), maxAddresses)] {
		out.Addresses = append(out.Addresses, netip.AddrPortFrom(addr, port))
	}

	grant, granted := policy.Granted(q.Host, q.Port)
	if v.upstream != nil {
		if out.Via, reason = s.via(v); reason != nil {
			return wire.Pinned{}, reason, true
		}
		if granted {
			out.Via.Ends = grant.Until
		}
	}
	if granted && grant.Once && by == dialers {
		if !a.spend(v.target, grant) {
			grant.Spent = true
			_, reason := policy.With([]wire.Grant{grant}).Check(q.Host, q.Port)
			return wire.Pinned{}, reason, true
		}
		defer func() {
			if done && s.cfg.Spent != nil {
				s.cfg.Spent(a.account, grant)
			} else if !done {
				a.unspend(v.target, grant)
			}
		}()
	}
	return s.commit(a, policy, q, v, out)
}

// commit makes the pin in the kernel, unless the policy was replaced.
func (s *Server) commit(a *agent, policy *dial.Policy, q wire.DialRequest, v verdict, out wire.Pinned) (_ wire.Pinned, _ *deny.Reason, done bool) {
	ttl, flow := s.cfg.TTL, max(nft.FlowTimeout, s.cfg.TTL)
	if g, ok := policy.Granted(q.Host, q.Port); ok {
		flow = time.Until(g.Until)
		ttl = min(ttl, flow)
		if g.Once {
			ttl = min(ttl, onceTTL)
		}
		if ttl <= 0 {
			return wire.Pinned{}, nil, false // it has just ended: the policy says how
		}
	}
	a.policyMu.RLock() // SetPolicy waits until the pin is where it can revoke it
	defer a.policyMu.RUnlock()
	if a.policy.Load() != policy { // it changed meanwhile: from the start
		return wire.Pinned{}, nil, false
	}
	out.Expires = time.Now().Add(ttl)
	pinned := v.target
	if v.upstream != nil {
		// One pin for all that goes through the proxy, whatever it is asked for.
		pinned, ttl, flow = behind(v.upstream.Target()), s.cfg.TTL, max(nft.FlowTimeout, s.cfg.TTL)
	}
	if err := s.cfg.Table.PinFor(a.account, pinned, out.Addresses, ttl, flow); err != nil {
		return wire.Pinned{}, pinFailed(v.target, err), true
	}
	return out, nil, true
}

// verdict is a destination that the guard let pass.
type verdict struct {
	target string // "name:port" in its normal form
	dest   team.Destination
	addrs  []netip.Addr // the proxy's, behind one
	answer answer

	upstream *team.Upstream // nil: reached by itself
}

// decide is everything before the kernel: the policy, DNS, and the check of
// each address.
func (s *Server) decide(ctx context.Context, policy *dial.Policy, q wire.DialRequest) (verdict, *deny.Reason) {
	d, reason := policy.Check(q.Host, q.Port)
	if reason != nil {
		return verdict{}, reason
	}
	h, err := dial.Normalise(q.Host)
	if err != nil { // Check would have said so
		return verdict{}, &deny.Reason{Layer: deny.LayerEgress, Code: deny.BadTarget, What: q.Host, Why: err.Error(), Mend: "ask for a host name or an address"}
	}
	v := verdict{target: dial.Target(h, q.Port), dest: d}
	if v.upstream = policy.Upstream(q.Host, d); v.upstream != nil {
		return s.decideUpstream(ctx, v)
	}
	addrs, ok := policy.Fixed(q.Host, d)
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		v.answer, err = s.cache.lookup(ctx, h.Name)
		if err != nil {
			return v, unresolved(v.target, h.Name, err)
		}
		addrs = v.answer.addrs
	}
	own, err := s.cfg.Own()
	if err != nil {
		return v, pinFailed(v.target, fmt.Errorf("this host's own addresses cannot be read: %w", err))
	}
	v.addrs, reason = policy.CheckAddresses(h.String(), d, addrs, own)
	return v, reason
}

// Explain decides about host and port as a request of the agent's dialer would
// be decided now, and pins nothing. It gives the addresses that would be
// pinned, and the destination of the policy that covers the request.
func (s *Server) Explain(ctx context.Context, account, host string, port uint16) (team.Destination, []netip.Addr, *deny.Reason, error) {
	s.mu.Lock()
	a := s.agents[account]
	s.mu.Unlock()
	if a == nil {
		return team.Destination{}, nil, nil, fmt.Errorf("pins: %s is not served", account)
	}
	v, reason := s.decide(ctx, a.policy.Load(), wire.DialRequest{Host: host, Port: port})
	return v.dest, v.addrs, reason, nil
}

func unresolved(target, name string, err error) *deny.Reason {
	r := &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.NameUnresolved, What: target, Why: "DNS failed for " + name + " and no earlier answer is known: " + err.Error(),
		Mend: "try again; check the host's DNS servers and that the resolver runs",
	}
	if errors.Is(err, resolver.ErrNotFound) {
		r.Why, r.Mend = "DNS knows no address of "+name, "check the name, or give its address under hosts: in bulkhead.yaml"
	}
	return r
}

func pinFailed(target string, err error) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.PinFailed, What: target, Why: "the kernel did not take the pin, so nothing may pass: " + err.Error(),
		Mend: "try again; when it stays, run `bulkhead status` on the host",
	}
}

// splitDestination reads what [dial.Target] wrote.
func splitDestination(s string) (string, uint16, error) {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 {
		return "", 0, fmt.Errorf("pins: %q is not host:port", s)
	}
	port, err := strconv.ParseUint(s[i+1:], 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("pins: %q is not host:port", s)
	}
	return s[:i], uint16(port), nil
}

// ownAddresses asks the kernel each time: addresses come and go.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out, nil
}

func temporary(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ECONNABORTED)
}
