package pins

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

func company() *team.Agent {
	return &team.Agent{
		Name: "writer",
		Egress: []team.Destination{
			{Host: "api.example.com", Port: 443},
			{Host: "other.example.com", Port: 443},
			{Host: "git.corp.example", Port: 443},
			{Host: "host", Port: 8080},
			{Host: "fixed.example.com", Port: 443},
		},
		Hosts: map[string][]netip.Addr{"fixed.example.com": {netip.MustParseAddr("10.0.0.9")}},
		Upstream: &team.Upstream{
			Host: "proxy.corp.example", Port: 3128, Except: []string{"git.corp.example"}, Credentials: team.HostFile{Path: "/etc/cred"},
		},
	}
}

func startBehind(t *testing.T) *fixture {
	t.Helper()
	f := start(t, time.Minute, me(), dial.NewPolicy(company()))
	f.server.cfg.Authorization = func(u *team.Upstream) (string, error) { return "Basic of " + u.Credentials.Path, nil }
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	f.dns.set("proxy.corp.example", nil, "10.1.2.3", "127.0.0.1")
	f.dns.set("git.corp.example", nil, "8.8.8.8")
	return f
}

func TestBehindAProxyTheKernelGetsTheProxyAndTheDialerTheName(t *testing.T) {
	f := startBehind(t)
	want := []string{"git.corp.example", "proxy.corp.example"}
	if !slices.Equal(f.dns.given, want) {
		t.Fatalf("the resolver was given %v, want %v", f.dns.given, want)
	}
	for host, target := range map[string]string{"API.example.com.": "api.example.com:443", "other.example.com": "other.example.com:443"} {
		p, code := f.pin(t, host, 443)
		if code != "" || p.Via == nil || p.Via.Target != target || p.Via.Authorization != "Basic of /etc/cred" || p.Via.Proxy != "proxy.corp.example:3128" || !p.Via.Ends.IsZero() {
			t.Fatalf("%s: %+v %+v %q", host, p, p.Via, code)
		}
		if len(p.Addresses) != 1 || p.Addresses[0].String() != "10.1.2.3:3128" {
			t.Fatalf("%s: %v", host, p.Addresses)
		}
	}
	for host, port := range map[string]uint16{"git.corp.example": 443, "host": 8080, "fixed.example.com": 443} {
		if p, code := f.pin(t, host, port); code != "" || p.Via != nil {
			t.Fatalf("%s: %+v %q", host, p, code)
		}
	}
	if _, code := f.pin(t, "evil.example", 443); code != deny.NotListed {
		t.Fatalf("what is not listed: %q", code)
	}
	if _, code := f.pin(t, "proxy.corp.example", 3128); code != deny.NotListed {
		t.Fatalf("the proxy itself: %q", code)
	}
	if got := strings.Join(f.kernel.has(), " "); !strings.Contains(got, "proxy proxy.corp.example:3128[10.1.2.3:3128]") || strings.Contains(got, "api.example.com") {
		t.Fatalf("pinned: %s", got)
	}
}

func TestCredentialsThatCannotBeReadCloseTheWay(t *testing.T) {
	f := startBehind(t)
	f.server.cfg.Authorization = func(*team.Upstream) (string, error) { return "", errors.New("mode 0644") }
	if _, code := f.pin(t, "api.example.com", 443); code != deny.PinFailed {
		t.Fatalf("%q", code)
	}
	if got := f.kernel.has(); len(got) != 0 {
		t.Fatalf("pinned: %v", got)
	}
}

func TestPinsOfAnotherWayOutAreRevoked(t *testing.T) {
	f := startBehind(t)
	f.pin(t, "api.example.com", 443)
	_ = f.kernel.PinFor("", "other.example.com:443", []netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:443")}, 0, 0) // from before there was a proxy
	if err := f.server.SetPolicy("bh-t-writer", dial.NewPolicy(company())); err != nil {
		t.Fatal(err)
	}
	if got := f.kernel.has(); !slices.Equal(got, []string{"proxy proxy.corp.example:3128[10.1.2.3:3128]"}) {
		t.Fatalf("left: %v", got)
	}
	another := company()
	another.Upstream = &team.Upstream{Host: "proxy2.corp.example", Port: 3128}
	for what, a := range map[string]*team.Agent{"another proxy": another, "none": {Name: "writer", Egress: company().Egress}} {
		_ = f.kernel.PinFor("", "proxy proxy.corp.example:3128", []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:3128")}, 0, 0)
		if err := f.server.SetPolicy("bh-t-writer", dial.NewPolicy(a)); err != nil {
			t.Fatal(err)
		}
		if got := f.kernel.has(); len(got) != 0 {
			t.Fatalf("%s: left %v", what, got)
		}
	}
}

func TestATemporaryDestinationBehindAProxyIsEndedByTheDialer(t *testing.T) {
	f := startBehind(t)
	until := time.Now().Add(time.Hour).Round(0)
	grants := []wire.Grant{{Target: "later.example:443", Until: until, At: time.Now()}}
	if err := f.server.SetPolicy("bh-t-writer", dial.NewPolicy(company()).With(grants)); err != nil {
		t.Fatal(err)
	}
	p, code := f.pin(t, "later.example", 443)
	if code != "" || p.Via == nil || !p.Via.Ends.Equal(until) {
		t.Fatalf("%+v %+v %q", p, p.Via, code)
	}
	f.kernel.mu.Lock()
	if f.kernel.ttl != time.Minute { // the proxy's pin is everybody's
		t.Errorf("the proxy is pinned for %s", f.kernel.ttl)
	}
	f.kernel.mu.Unlock()
	if err := f.server.SetPolicy("bh-t-writer", dial.NewPolicy(company())); err != nil {
		t.Fatal(err)
	}
	hears := func(when string) {
		m, _, err := f.conn.Recv()
		var q wire.DialRequest
		if err == nil {
			err = json.Unmarshal(m.Body, &q)
		}
		if err != nil || m.Verb != wire.VerbUnpin || q.Host != "later.example" || q.Port != 443 {
			t.Fatalf("%s: %+v %v", when, m, err)
		}
	}
	hears("at once")
	// A dialer that was away hears of it when it is back.
	_ = f.conn.Close()
	f.connect(t)
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	hears("afterwards")
	// Allowed again, it is not ended.
	if err := f.server.SetPolicy("bh-t-writer", dial.NewPolicy(company()).With(grants)); err != nil {
		t.Fatal(err)
	}
	_ = f.conn.Close()
	f.connect(t)
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	if p, code := f.pin(t, "later.example", 443); code != "" || p.Via == nil {
		t.Fatalf("%+v %q", p, code)
	}
}

func TestAProxyWhoseNameIsNotKnownSaysSo(t *testing.T) {
	f := startBehind(t)
	f.dns.set("proxy.corp.example", errors.New("server failure"))
	if err := f.conn.Send(1, wire.VerbPin, wire.DialRequest{Host: "api.example.com", Port: 443}); err != nil {
		t.Fatal(err)
	}
	m, _, err := f.conn.Recv()
	if err != nil || m.Verb != wire.VerbDenied || !strings.Contains(string(m.Body), "upstreamProxy.url") {
		t.Fatalf("%+v %v", m, err)
	}
}
