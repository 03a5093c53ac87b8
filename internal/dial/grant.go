package dial

import (
	"slices"
	"time"

	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// granted is a destination beside the manifest.
type granted struct {
	wire.Grant
	dest team.Destination
}

// With gives a policy that also allows grants while they live. The time is
// looked at with each decision, so one that is over is closed though nobody
// takes it away. A grant that is no exact destination is left out.
func (p *Policy) With(grants []wire.Grant) *Policy {
	out := *p
	out.granted = nil
	for _, g := range grants {
		d, err := team.ParseDestination(g.Target)
		if err != nil || d.Wild() {
			continue
		}
		d.Position = "a temporary destination (`bulkhead allow`) until " + g.Until.UTC().Format(time.RFC3339)
		out.granted = append(out.granted, granted{g, d})
	}
	return &out
}

// Granted gives the grant, and not the manifest, that allows host and port now.
func (p *Policy) Granted(host string, port uint16) (wire.Grant, bool) {
	h, err := Normalise(host)
	if err != nil || p.listed(h, port) {
		return wire.Grant{}, false
	}
	if g := p.grant(h, port, func(g wire.Grant) bool { return g.Live(time.Now()) }); g != nil {
		return g.Grant, true
	}
	return wire.Grant{}, false
}

// Keeps says whether connections to host and port that are open may stay. That
// is more than Check allows: a grant for one connection is used up by it.
func (p *Policy) Keeps(host string, port uint16) (team.Destination, bool) {
	d, reason := p.Check(host, port)
	if reason == nil {
		return d, true
	}
	h, err := Normalise(host)
	if err != nil {
		return team.Destination{}, false
	}
	if g := p.grant(h, port, func(g wire.Grant) bool { return time.Now().Before(g.Until) }); g != nil {
		return g.dest, true
	}
	return team.Destination{}, false
}

func (p *Policy) listed(h Host, port uint16) bool {
	if _, ok := p.named[named{h.Name, port}]; ok && h.Name != "" {
		return true
	}
	return p.unguarded || slices.ContainsFunc(p.egress, func(d team.Destination) bool { return d.Port == port && covers(d, h) })
}

func (p *Policy) grant(h Host, port uint16, ok func(wire.Grant) bool) *granted {
	for i, g := range p.granted {
		if g.dest.Port == port && covers(g.dest, h) && ok(g.Grant) {
			return &p.granted[i]
		}
	}
	return nil
}

// Grants lists the temporary destinations, over or not.
func (p *Policy) Grants() []wire.DialRequest {
	out := make([]wire.DialRequest, 0, len(p.granted))
	for _, g := range p.granted {
		host := g.dest.Host
		if host == "" {
			host = g.dest.Address.String()
		}
		out = append(out, wire.DialRequest{Host: host, Port: g.dest.Port})
	}
	return out
}
