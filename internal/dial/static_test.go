package dial

import (
	"net/netip"
	"slices"
	"testing"

	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

func TestALiteralAddressStandsOnLoUnlessItMeansTheRuntimeItself(t *testing.T) {
	for addr, local := range map[string]bool{
		"10.1.2.3": true, "203.0.113.7": true, "93.184.215.14": true, "fd00::7": true,
		"127.0.0.2": false, "::1": false, "169.254.169.254": false, "fe80::1": false,
	} {
		a := netip.MustParseAddr(addr)
		s := StaticFor(&team.Agent{Egress: []team.Destination{{Address: a, Port: 5432}}})
		target := netip.AddrPortFrom(a, 5432).String()
		got := slices.ContainsFunc(s.Listeners, func(l wire.Listener) bool { return l.Address == target && l.Target == target }) &&
			slices.Contains(s.Loopback, netip.PrefixFrom(a, a.BitLen()))
		if got != local {
			t.Errorf("%s is on lo: %t, want %t", addr, got, local)
		}
	}
}
