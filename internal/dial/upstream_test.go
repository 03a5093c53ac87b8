package dial_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

func behind() *team.Agent {
	a := agent()
	a.Egress = append(a.Egress, team.Destination{Host: "git.corp.example", Port: 443}, team.Destination{Host: "*.lab.example", Port: 443})
	a.Upstream = &team.Upstream{Host: "proxy.corp.example", Port: 3128, Except: []string{"*.corp.example", "one.cdn.example.com", "*.sub.lab.example"}}
	return a
}

func TestNamesGoThroughTheProxyAndAddressesDoNot(t *testing.T) {
	p := dial.NewPolicy(behind()).With([]wire.Grant{{Target: "later.example:443", Until: time.Now().Add(time.Hour)}})
	for _, c := range []struct {
		host string
		port uint16
		via  bool
	}{
		{"api.example.com", 443, true},
		{"API.example.com.", 443, true},
		{"two.cdn.example.com", 443, true},
		{"one.cdn.example.com", 443, false}, // excepted
		{"git.corp.example", 443, false},
		{"a.lab.example", 443, true},
		{"a.sub.lab.example", 443, false},
		{"host", 8080, false},
		{"192.0.2.7", 5432, false},
		{"[2001:db8::7]", 443, false},
		{"pinned.example", 443, false}, // the manifest gives its address
		{"later.example", 443, true},   // a temporary one
	} {
		d, reason := p.Check(c.host, c.port)
		if reason != nil {
			t.Fatal(reason)
		}
		if got := p.Upstream(c.host, d) != nil; got != c.via {
			t.Errorf("%s:%d through the proxy: %t", c.host, c.port, got)
		}
	}
	// DNS hears of nothing that only the proxy has to know.
	want := []string{"*.sub.lab.example", "git.corp.example", "one.cdn.example.com", "proxy.corp.example"}
	if got := p.Names(); !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	if !p.Relays() || dial.NewPolicy(agent()).Relays() {
		t.Error("relays")
	}
	if !p.Behind("proxy.corp.example:3128") || p.Behind("proxy.corp.example:3129") || dial.NewPolicy(agent()).Behind("proxy.corp.example:3128") {
		t.Error("behind")
	}
}

func TestAProxyMayHaveAPrivateAddressButNotThisHosts(t *testing.T) {
	u := &team.Upstream{Host: "proxy.corp.example", Port: 3128}
	own := []netip.Addr{netip.MustParseAddr("10.9.9.9")}
	for addr, code := range map[string]deny.Code{
		"10.1.2.3": "", "192.168.0.1": "", "100.64.0.1": "", "fd00::1": "", "8.8.8.8": "",
		"127.0.0.1": deny.SpecialRange, "169.254.169.254": deny.SpecialRange, "::1": deny.SpecialRange, "fe80::1": deny.SpecialRange,
		"0.0.0.0": deny.SpecialRange, "224.0.0.1": deny.SpecialRange, "64:ff9b::7f00:1": deny.SpecialRange, "::ffff:127.0.0.1": deny.SpecialRange,
		"10.9.9.9": deny.OwnAddress, "::ffff:10.9.9.9": deny.OwnAddress,
	} {
		good, reason := dial.UpstreamAddresses(u, []netip.Addr{netip.MustParseAddr(addr)}, own)
		got := deny.Code("")
		if reason != nil {
			got = reason.Code
		}
		if got != code || (len(good) == 1) != (code == "") {
			t.Errorf("%s: %q %v, want %q", addr, got, good, code)
		}
	}
	if _, reason := dial.UpstreamAddresses(u, nil, own); reason == nil || reason.Code != deny.NameUnresolved {
		t.Error(reason)
	}
}
