package dial

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// LoopbackName is the name under which a manifest's "host:PORT" is known
// inside: one service on this host's loopback.
const LoopbackName = "host"

// Policy is what one agent may connect to. It is immutable.
type Policy struct {
	agent     string
	egress    []team.Destination
	named     map[named]int // where in egress the first entry with this very name and port is
	hosts     map[string][]netip.Addr
	granted   []granted
	upstream  *team.Upstream
	unguarded bool
}

// named is a destination by its whole name.
type named struct {
	host string
	port uint16
}

// NewPolicy takes Name, Egress, Hosts and Upstream of a; nothing else is looked at.
func NewPolicy(a *team.Agent) *Policy {
	p := &Policy{agent: a.Name, egress: slices.Clone(a.Egress), hosts: map[string][]netip.Addr{}, upstream: a.Upstream}
	p.named = make(map[named]int, len(p.egress))
	for i, d := range p.egress {
		key := named{d.Host, d.Port}
		if _, ok := p.named[key]; !ok && d.Host != "" {
			p.named[key] = i
		}
	}
	for name, addrs := range a.Hosts {
		p.hosts[strings.ToLower(strings.TrimSuffix(name, "."))] = slices.Clone(addrs)
	}
	return p
}

// Unguarded allows every name, port and address: only for decoys that show
// what the guard stops.
func Unguarded(agent string) *Policy { return &Policy{agent: agent, unguarded: true} }

// Check says which destination of the manifest covers host and port, which are
// as the client wrote them. The reason, when there is one, carries the exact
// line that would allow it.
func (p *Policy) Check(host string, port uint16) (team.Destination, *deny.Reason) {
	h, err := Normalise(host)
	if err != nil {
		return team.Destination{}, p.bad(host, port, err.Error())
	}
	if port == 0 {
		return team.Destination{}, p.bad(host, port, "port 0 is not a port")
	}
	if p.unguarded {
		return team.Destination{Host: h.Name, Address: h.Addr, Port: port, SNI: team.SNIAny}, nil
	}
	// An entry with the very name says more than one with its suffix.
	if i, ok := p.named[named{h.Name, port}]; ok && h.Name != "" {
		return p.egress[i], nil
	}
	var ports []string
	var found *team.Destination
	for i, d := range p.egress {
		if !covers(d, h) {
			continue
		}
		if d.Port != port {
			ports = append(ports, strconv.Itoa(int(d.Port)))
			continue
		}
		if found == nil {
			found = &p.egress[i]
		}
	}
	if found != nil {
		return *found, nil
	}
	if g := p.grant(h, port, func(g wire.Grant) bool { return g.Live(time.Now()) }); g != nil {
		return g.dest, nil
	}
	target := Target(h, port)
	r := &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.NotListed, What: target,
		Why: fmt.Sprintf("%s is not in the egress list of agent %s", h, p.agent), Mend: p.add(target),
	}
	if h.Name == "localhost" || h.Addr.IsLoopback() {
		r.Why = fmt.Sprintf("%s is this host's own loopback as seen from outside the agent", h)
		r.Mend = p.add(LoopbackName + ":" + strconv.Itoa(int(port)))
	}
	if len(ports) > 0 {
		r.Code = deny.PortNotListed
		r.Why = fmt.Sprintf("%s is listed for agent %s, but only with port %s", h, p.agent, strings.Join(slices.Compact(ports), ", "))
	}
	return team.Destination{}, r
}

// Target writes host and port the way a manifest does.
func Target(h Host, port uint16) string {
	if h.Name != "" {
		return h.Name + ":" + strconv.Itoa(int(port))
	}
	return netip.AddrPortFrom(h.Addr, port).String()
}

func (p *Policy) add(target string) string {
	return fmt.Sprintf("add %q to agents.%s.egress in bulkhead.yaml", target, p.agent)
}

func (p *Policy) bad(host string, port uint16, why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.BadTarget, What: fmt.Sprintf("%.100q port %d", host, port), Why: why,
		Mend: "ask for a DNS name, an IPv4 address in four decimal parts, or an IPv6 address, and a port",
	}
}

func covers(d team.Destination, h Host) bool {
	if h.Name == "" {
		return d.Host == "" && d.Address.Unmap() == h.Addr
	}
	if suffix, ok := strings.CutPrefix(d.Host, "*"); ok {
		return len(h.Name) > len(suffix) && strings.HasSuffix(h.Name, suffix) // suffix begins with a dot
	}
	return d.Host != "" && d.Host == h.Name
}

// Fixed gives the addresses that the manifest itself names for a checked
// destination: a literal address, a "hosts:" entry or the host's loopback.
// False means that DNS decides.
func (p *Policy) Fixed(host string, d team.Destination) ([]netip.Addr, bool) {
	h, err := Normalise(host)
	if err != nil {
		return nil, false
	}
	if h.Addr.IsValid() {
		return []netip.Addr{h.Addr}, true
	}
	if addrs, ok := p.hosts[h.Name]; ok {
		return slices.Clone(addrs), true
	}
	if h.Name == LoopbackName && d.Host == LoopbackName {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, true
	}
	return nil, false
}

// CheckAddresses returns those of addrs that may be connected to for host. It
// fails when none remains. own are the addresses of this host.
func (p *Policy) CheckAddresses(host string, d team.Destination, addrs, own []netip.Addr) ([]netip.Addr, *deny.Reason) {
	if p.unguarded {
		return addrs, nil
	}
	fixed, _ := p.Fixed(host, d)
	var good []netip.Addr
	var first *deny.Reason
	for _, a := range addrs {
		a = a.WithZone("")
		if slices.Contains(fixed, a) {
			good = append(good, a.Unmap())
			continue
		}
		why, code := "", deny.SpecialRange
		if rng := Special(a); rng != "" {
			why = fmt.Sprintf("%s resolves to %s, in %s", host, a, rng)
		}
		if slices.ContainsFunc(own, func(o netip.Addr) bool { return o.WithZone("").Unmap() == a.Unmap() }) {
			code, why = deny.OwnAddress, fmt.Sprintf("%s resolves to %s, an address of this host", host, a)
		}
		if why == "" {
			good = append(good, a)
			continue
		}
		if first == nil {
			first = &deny.Reason{
				Layer: deny.LayerEgress, Code: code, What: fmt.Sprintf("%s:%d", host, d.Port), Why: why,
				Mend: fmt.Sprintf("if that address is meant, name it: add %q under agents.%s.hosts in bulkhead.yaml", host+": ["+a.String()+"]", p.agent),
			}
		}
	}
	if len(good) > 0 {
		return good, nil
	}
	if first == nil {
		first = &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NameUnresolved, What: fmt.Sprintf("%s:%d", host, d.Port), Why: host + " has no address",
			Mend: "check the name, or give its address under agents." + p.agent + ".hosts in bulkhead.yaml",
		}
	}
	return nil, first
}

// Names is what the resolver must be able to ask for this agent.
func (p *Policy) Names() []string {
	var out []string
	for _, d := range p.egress {
		out = append(out, p.asked(d)...)
	}
	for _, g := range p.granted {
		out = append(out, p.asked(g.dest)...)
	}
	if p.upstream != nil && p.upstream.Host != "" {
		out = append(out, p.upstream.Host)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// asked is what DNS is asked for because of one destination.
func (p *Policy) asked(d team.Destination) []string {
	switch {
	case d.Host == "" || d.Host == LoopbackName || p.hosts[d.Host] != nil:
		return nil
	case p.upstream == nil:
		return []string{d.Host}
	}
	return p.direct(d)
}
