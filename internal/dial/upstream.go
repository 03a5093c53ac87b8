package dial

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/team"
)

// carrier is the shared address space of RFC 6598, from which companies and
// their proxies' vendors number internal services.
var carrier = netip.MustParsePrefix("100.64.0.0/10")

// Upstream gives the proxy by which a checked destination is reached; nil when
// it is reached without one: there is none, the manifest itself gives the
// destination an address, or its name is excepted.
func (p *Policy) Upstream(host string, d team.Destination) *team.Upstream {
	if p.upstream == nil {
		return nil
	}
	h, err := Normalise(host)
	if err != nil || p.upstream.Excepts(h.Name) {
		return nil
	}
	if _, fixed := p.Fixed(host, d); fixed {
		return nil
	}
	return p.upstream
}

// Relays says whether the dialer must keep every socket to itself: behind a
// proxy a socket that leads anywhere could be aimed at the proxy, which leads
// everywhere.
func (p *Policy) Relays() bool { return p.upstream != nil }

// Behind says whether connections through the proxy named target
// ([team.Upstream.Target]) may stay.
func (p *Policy) Behind(target string) bool {
	return p.upstream != nil && p.upstream.Target() == target
}

// direct is what DNS is asked for because of a destination of an agent behind
// a proxy: its excepted names. For a wildcard these are the names that both
// cover.
func (p *Policy) direct(d team.Destination) []string {
	var out []string
	for _, e := range p.upstream.Except {
		switch {
		case d.Host == e, matches(e, d.Host):
			out = append(out, d.Host)
		case matches(d.Host, e):
			out = append(out, e)
		}
	}
	return out
}

// matches says whether pattern, a name or "*.suffix", covers all that other,
// a name or "*.suffix", covers.
func matches(pattern, other string) bool {
	suffix, ok := strings.CutPrefix(pattern, "*")
	return pattern == other || ok && strings.HasSuffix(strings.TrimPrefix(other, "*"), suffix)
}

// UpstreamAddresses returns those of addrs, DNS's answer for the proxy's name,
// that may be connected to; an address that the manifest itself names is not
// asked about. Private addresses are where such proxies are. It fails when none
// remains. own are the addresses of this host.
func UpstreamAddresses(u *team.Upstream, addrs, own []netip.Addr) ([]netip.Addr, *deny.Reason) {
	var good []netip.Addr
	var first *deny.Reason
	for _, a := range addrs {
		a = a.WithZone("").Unmap()
		code, why := deny.SpecialRange, ""
		if rng := Special(a); rng != "" && !a.IsPrivate() && !carrier.Contains(a) {
			why = fmt.Sprintf("the upstream proxy %s resolves to %s, in %s", u.Host, a, rng)
		}
		if slices.ContainsFunc(own, func(o netip.Addr) bool { return o.WithZone("").Unmap() == a }) {
			code, why = deny.OwnAddress, fmt.Sprintf("the upstream proxy %s resolves to %s, an address of this host", u.Host, a)
		}
		if why == "" {
			good = append(good, a)
			continue
		}
		if first == nil {
			mend := fmt.Sprintf("if that address is meant, write it into upstreamProxy.url: http://%s", netip.AddrPortFrom(a, u.Port))
			first = &deny.Reason{Layer: deny.LayerEgress, Code: code, What: u.URL(), Why: why, Mend: mend}
		}
	}
	if len(good) == 0 && first == nil {
		first = &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NameUnresolved, What: u.URL(), Why: "the upstream proxy " + u.Host + " has no address",
			Mend: "check the name, or write the proxy's address into upstreamProxy.url",
		}
	}
	if len(good) > 0 {
		return good, nil
	}
	return nil, first
}
