package team

import (
	"net/netip"

	"bulkhead/internal/layout"
)

// Front is where programs of this host that are no agents reach this team's.
type Front struct {
	Listen netip.AddrPort // of the host's loopback
	Cert   HostFile       // with Key: TLS; no Path: none
	Key    HostFile
	Guests *Guests `json:",omitempty"` // nil: no agents are made through it
}

// front reads where to listen.
func (r *reader) front(p place) *Front {
	if p.node == nil {
		return nil
	}
	const usage = "{listen: 127.0.0.1:8484}"
	f := r.fields(p, "where to listen, like "+usage, frontKeys...)
	r.need(p, f, "listen", "name an address and a port of this host's loopback, like "+usage)
	out := &Front{}
	if s, ok := r.text(f["listen"], "an address and a port, like 127.0.0.1:8484"); ok {
		a, err := netip.ParseAddrPort(s)
		switch {
		case err != nil:
			r.fault(f["listen"], "write an address and a port, like 127.0.0.1:8484", "%q is no address and port", clip(s))
		case !a.Addr().IsLoopback() || a.Addr().Is4In6() || a.Addr().Zone() != "":
			r.fault(f["listen"], "listen on 127.0.0.1 or [::1]; let a proxy that you trust pass on what comes from elsewhere", "%s is not of this host's loopback", clip(s))
		case a.Port() == 0:
			r.fault(f["listen"], "choose a port of 1 to 65535", "port 0 is any port")
		}
		out.Listen = a
	}
	out.Cert, out.Key = r.hostFile(f["certFile"]), r.hostFile(f["keyFile"])
	if (out.Cert.Path == "") != (out.Key.Path == "") && f != nil {
		r.fault(p, "give both certFile and keyFile, or neither", "TLS needs a certificate and its key")
	}
	out.Guests = r.guests(f["guests"])
	return out
}

// boolean reads true or false; absent is false.
func (r *reader) boolean(p place) bool {
	if p.node == nil {
		return false
	}
	return r.choice(p, "true", "false") == "true"
}

// Services lists which of the host's own servers an agent of the team is
// reached by or reports to.
func (m *Manifest) Services() []string {
	var out []string
	if m != nil && m.Audit {
		out = append(out, layout.AuditName)
	}
	if m != nil && len(m.Topics) > 0 {
		out = append(out, layout.TopicsName)
	}
	if m != nil && m.Front != nil {
		out = append(out, layout.FrontName)
	}
	return out
}

// servicesDiff says which servers the gateways of a team get or lose.
func servicesDiff(old, new *Manifest) []string {
	return setDiff("services", old.Services(), new.Services())
}
