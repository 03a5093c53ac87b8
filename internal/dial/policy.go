package dial

import (
	"net/netip"

	"bulkhead/internal/deny"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// Policy is what one agent may connect to. It is immutable.
type Policy struct{ policy }

// NewPolicy takes Name, Egress and Hosts of a; nothing else is looked at.
func NewPolicy(a *team.Agent) *Policy { return newPolicy(a) }

// Unguarded allows every name, port and address: only for decoys that show
// what the guard stops.
func Unguarded(agent string) *Policy { return unguarded(agent) }

// Check says which destination of the manifest covers host and port, which are
// as the client wrote them. The reason, when there is one, carries the exact
// line that would allow it.
func (p *Policy) Check(host string, port uint16) (team.Destination, *deny.Reason) {
	return p.check(host, port)
}

// Fixed gives the addresses that the manifest itself names for a checked
// destination: a literal address, a "hosts:" entry or the host's loopback.
// False means that DNS decides.
func (p *Policy) Fixed(host string, d team.Destination) ([]netip.Addr, bool) { return p.fixed(host, d) }

// CheckAddresses returns those of addrs that may be connected to for host. It
// fails when none remains. own are the addresses of this host.
func (p *Policy) CheckAddresses(host string, d team.Destination, addrs, own []netip.Addr) ([]netip.Addr, *deny.Reason) {
	return p.checkAddresses(host, d, addrs, own)
}

// Names is what the resolver must be able to ask for this agent.
func (p *Policy) Names() []string { return p.names() }

// Static is how listed destinations look inside the runtime.
type Static struct {
	Hosts     []string        // lines for the runtime's hosts file, "11.77.3.9 api.example.com"
	Listeners []wire.Listener // what the shim listens on; the first one is the HTTP proxy
	Loopback  []netip.Prefix  // for engine.Network.Loopback of the runtime
	Proxy     string          // "127.0.0.1:3128", for HTTP_PROXY and its siblings
}

// StaticFor computes the synthetic addresses of an agent (docs/decisions/0004).
func StaticFor(a *team.Agent) Static { return staticFor(a) }
