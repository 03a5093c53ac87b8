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
	"bulkhead/internal/resolver"
	"bulkhead/internal/wire"
)

// maxAddresses bounds how many addresses of one destination are pinned.
const maxAddresses = 8

// lookupTimeout is a little more than the resolver's own.
const lookupTimeout = resolver.LookupTimeout + time.Second

// attempts is how often a request is tried anew when the policy changes below it.
const attempts = 5

// pin answers one request.
func (s *Server) pin(ctx context.Context, a *agent, q wire.DialRequest) (wire.Pinned, *deny.Reason) {
	for range attempts {
		out, reason, done := s.tryPin(ctx, a, q)
		if done {
			return out, reason
		}
	}
	return wire.Pinned{}, pinFailed(q.Host, errors.New("the manifest changes too fast"))
}

// tryPin is the whole way from a request to the kernel. It is not done when
// the policy was replaced before the pin was made.
func (s *Server) tryPin(ctx context.Context, a *agent, q wire.DialRequest) (_ wire.Pinned, _ *deny.Reason, done bool) {
	policy := a.policy.Load()
	d, reason := policy.Check(q.Host, q.Port)
	if reason != nil {
		return wire.Pinned{}, reason, true
	}
	h, err := dial.Normalise(q.Host)
	if err != nil { // Check would have said so
		return wire.Pinned{}, &deny.Reason{Layer: deny.LayerEgress, Code: deny.BadTarget, What: q.Host, Why: err.Error(), Mend: "ask for a host name or an address"}, true
	}
	target := dial.Target(h, q.Port)
	var out wire.Pinned
	addrs, ok := policy.Fixed(q.Host, d)
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		answer, err := s.cache.lookup(ctx, h.Name)
		if err != nil {
			return wire.Pinned{}, unresolved(target, h.Name, err), true
		}
		addrs, out.Stale, out.Age = answer.addrs, answer.stale, answer.age
	}
	own, err := s.cfg.Own()
	if err != nil {
		return wire.Pinned{}, pinFailed(target, fmt.Errorf("this host's own addresses cannot be read: %w", err)), true
	}
	if addrs, reason = policy.CheckAddresses(h.String(), d, addrs, own); reason != nil {
		return wire.Pinned{}, reason, true
	}
	for _, addr := range addrs[:min(len(addrs), maxAddresses)] {
		out.Addresses = append(out.Addresses, netip.AddrPortFrom(addr, q.Port))
	}

	a.policyMu.RLock() // SetPolicy waits until the pin is where it can revoke it
	defer a.policyMu.RUnlock()
	if a.policy.Load() != policy { // it changed meanwhile: from the start
		return wire.Pinned{}, nil, false
	}
	out.Expires = time.Now().Add(s.cfg.TTL)
	if err := s.cfg.Table.Pin(a.account, target, out.Addresses, s.cfg.TTL); err != nil {
		return wire.Pinned{}, pinFailed(target, err), true
	}
	return out, nil, true
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
