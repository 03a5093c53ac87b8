package dial_test

import (
	"bufio"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/team"
)

func agent() *team.Agent {
	return &team.Agent{
		Name: "writer",
		Egress: []team.Destination{
			{Host: "api.example.com", Port: 443, SNI: team.SNIExact},
			{Host: "*.cdn.example.com", Port: 443, SNI: team.SNIExact},
			{Host: "deep.cdn.example.com", Port: 8443, SNI: team.SNIExact},
			{Host: "deep.cdn.example.com", Port: 443, SNI: team.SNIAny},
			{Host: "host", Port: 8080},
			{Address: netip.MustParseAddr("192.0.2.7"), Port: 5432},
			{Address: netip.MustParseAddr("2001:db8::7"), Port: 443},
			{Host: "xn--bcher-kva.example", Port: 443},
			{Host: "pinned.example", Port: 443},
		},
		Hosts: map[string][]netip.Addr{"pinned.example": {netip.MustParseAddr("10.0.0.5")}},
	}
}

func lines(t testing.TB, file string) []string {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if l := strings.TrimSpace(s.Text()); l != "" && !strings.HasPrefix(l, "#") {
			out = append(out, l)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s holds no case", file)
	}
	return out
}

func TestAddressesOfSpecialRanges(t *testing.T) {
	for _, l := range lines(t, "addresses.txt") {
		f := strings.Fields(l)
		got := "global"
		if dial.Special(netip.MustParseAddr(f[0])) != "" {
			got = "special"
		}
		if got != f[1] {
			t.Errorf("%s is %s, want %s", f[0], got, f[1])
		}
	}
}

func TestTargets(t *testing.T) {
	p := dial.NewPolicy(agent())
	for _, l := range lines(t, "targets.txt") {
		f := strings.Split(l, " | ")
		port, err := strconv.ParseUint(f[1], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		d, reason := p.Check(f[0], uint16(port))
		got := d.Host
		if d.Address.IsValid() {
			got = d.Address.String()
		}
		if reason != nil {
			got = string(reason.Code)
			if reason.Mend == "" || reason.Why == "" || reason.What == "" || reason.Layer != deny.LayerEgress {
				t.Errorf("%s: incomplete reason %+v", l, reason)
			}
		}
		if got != f[2] {
			t.Errorf("%q port %d: %s, want %s", f[0], port, got, f[2])
		}
	}
}

func TestMendIsTheExactLine(t *testing.T) {
	p := dial.NewPolicy(agent())
	for target, want := range map[string]string{
		"evil.example":    `add "evil.example:443" to agents.writer.egress in bulkhead.yaml`,
		"[2001:db8::9]":   `add "[2001:db8::9]:443" to agents.writer.egress in bulkhead.yaml`,
		"localhost":       `add "host:443" to agents.writer.egress in bulkhead.yaml`,
		"API.example.com": `add "api.example.com:22" to agents.writer.egress in bulkhead.yaml`,
	} {
		port := uint16(443)
		if target == "API.example.com" {
			port = 22
		}
		if _, r := p.Check(target, port); r == nil || r.Mend != want {
			t.Errorf("%s: %v, want the mend %s", target, r, want)
		}
	}
}

func TestAddressesAreCheckedUnlessTheManifestNamesThem(t *testing.T) {
	p := dial.NewPolicy(agent())
	own := []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("fe80::2%eth0")}
	for _, c := range []struct {
		host   string
		port   uint16
		addrs  string
		usable string
		code   deny.Code
	}{
		{"api.example.com", 443, "8.8.8.8 2606:4700::1111", "8.8.8.8 2606:4700::1111", ""},
		{"api.example.com", 443, "127.0.0.1 8.8.8.8", "8.8.8.8", ""},
		{"api.example.com", 443, "127.0.0.1", "", deny.SpecialRange},
		{"api.example.com", 443, "169.254.169.254 ::ffff:169.254.169.254", "", deny.SpecialRange},
		{"api.example.com", 443, "::ffff:8.8.8.8", "", deny.SpecialRange},
		{"api.example.com", 443, "93.184.216.34", "", deny.OwnAddress},
		{"api.example.com", 443, "", "", deny.NameUnresolved},
		{"pinned.example", 443, "10.0.0.5", "10.0.0.5", ""},
		{"pinned.example", 443, "10.0.0.6", "", deny.SpecialRange},
		{"192.0.2.7", 5432, "192.0.2.7", "192.0.2.7", ""},
		{"host", 8080, "127.0.0.1 ::1", "127.0.0.1 ::1", ""},
	} {
		d, r := p.Check(c.host, c.port)
		if r != nil {
			t.Fatal(r)
		}
		got, r := p.CheckAddresses(c.host, d, parse(c.addrs), own)
		if !slices.Equal(got, parse(c.usable)) || (r == nil) != (c.code == "") || r != nil && r.Code != c.code {
			t.Errorf("%s with %q: %v, %v; want %q, %q", c.host, c.addrs, got, r, c.usable, c.code)
		}
	}
}

func parse(s string) []netip.Addr {
	var out []netip.Addr
	for _, f := range strings.Fields(s) {
		out = append(out, netip.MustParseAddr(f))
	}
	return out
}

func TestResolverLearnsNamesOnly(t *testing.T) {
	want := []string{"*.cdn.example.com", "api.example.com", "deep.cdn.example.com", "xn--bcher-kva.example"}
	if got := dial.NewPolicy(agent()).Names(); !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

func TestStaticAddressesAreUnicastUniqueAndStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,3}\.example`), 1, 80, rapid.ID).Draw(t, "names")
		a := &team.Agent{Name: "a"}
		for _, n := range names {
			a.Egress = append(a.Egress, team.Destination{Host: n, Port: 443}, team.Destination{Host: n, Port: 80})
		}
		a.Egress = append(a.Egress, team.Destination{Address: netip.MustParseAddr("11.77.0.9"), Port: 1})
		s := dial.StaticFor(a)
		seen := map[string]bool{}
		for _, h := range s.Hosts {
			addr := netip.MustParseAddr(strings.Fields(h)[0])
			if seen[addr.String()] || dial.Special(addr) != "" {
				t.Fatalf("%s: taken twice, or special", h)
			}
			seen[addr.String()] = true
			if !slices.ContainsFunc(s.Loopback, func(p netip.Prefix) bool { return p.Contains(addr) }) {
				t.Fatalf("%s is not local", h)
			}
		}
		if len(seen) != len(names) || len(s.Listeners) != 2+2*len(names) {
			t.Fatalf("%d addresses and %d listeners for %d names", len(seen), len(s.Listeners), len(names))
		}
		if seen["11.77.0.9"] {
			t.Fatal("a name got a literal address of the manifest")
		}
		slices.Reverse(a.Egress)
		if again := dial.StaticFor(a); !slices.Equal(again.Hosts, s.Hosts) || !slices.Equal(again.Listeners, s.Listeners) {
			t.Fatal("the order of the manifest changes addresses")
		}
	})
}

func TestStaticOfWhatHasNoName(t *testing.T) {
	s := dial.StaticFor(&team.Agent{Egress: []team.Destination{
		{Host: "*.cdn.example.com", Port: 443},
		{Address: netip.MustParseAddr("127.0.0.1"), Port: 80},
		{Address: netip.MustParseAddr("8.8.8.8"), Port: 853},
	}})
	if len(s.Hosts) != 0 || len(s.Listeners) != 2 || s.Listeners[1].Address != "8.8.8.8:853" || s.Listeners[1].Target != "8.8.8.8:853" {
		t.Fatalf("%+v", s)
	}
	if len(s.Loopback) != 1 || s.Loopback[0].String() != "8.8.8.8/32" {
		t.Fatalf("%v", s.Loopback)
	}
}

func FuzzNormalise(f *testing.F) {
	data, err := os.ReadFile("testdata/targets.txt")
	if err != nil {
		f.Fatal(err)
	}
	for l := range strings.Lines(string(data)) {
		f.Add(strings.Split(l, " | ")[0])
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := dial.Normalise(s)
		if err != nil {
			return
		}
		if (h.Name == "") == !h.Addr.IsValid() {
			t.Fatalf("%q: %+v is neither or both", s, h)
		}
		again, err := dial.Normalise(h.String())
		if err != nil || again != h {
			t.Fatalf("%q: %q is not in normal form: %+v, %v", s, h, again, err)
		}
		if strings.ToLower(h.Name) != h.Name || h.Addr.Is4In6() || h.Addr.Zone() != "" {
			t.Fatalf("%q: %+v", s, h)
		}
	})
}
