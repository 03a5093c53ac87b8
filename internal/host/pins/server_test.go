package pins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/resolver"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// memory stands for the kernel's sets; test/system/egress has the real ones.
type memory struct {
	mu   sync.Mutex
	pins map[string][]netip.AddrPort
	fail bool
	ttl  time.Duration // of the last pin
	flow time.Duration
}

func (m *memory) PinFor(_, destination string, addrs []netip.AddrPort, ttl, flow time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail {
		return errors.New("netlink is out of order")
	}
	m.pins[destination] = addrs
	m.ttl, m.flow = ttl, flow
	return nil
}

func (m *memory) Unpin(_, destination string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pins, destination)
	return nil
}

func (m *memory) Pins(string) []nft.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []nft.Entry
	for d, addrs := range m.pins {
		for _, a := range addrs {
			e := nft.Entry{Address: a}
			if d != "" {
				e.Destinations = []string{d}
			}
			out = append(out, e)
		}
	}
	return out
}

func (m *memory) has() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for d, a := range m.pins {
		out = append(out, fmt.Sprint(d, a))
	}
	slices.Sort(out)
	return out
}

// names is a resolver whose answers the test sets.
type names struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	err     error
	given   []string
}

func (n *names) Lookup(_ context.Context, name string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return nil, n.err
	}
	return n.answers[name], nil
}

func (n *names) SetNames(list []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.given = list
}

func (n *names) set(name string, err error, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
	n.answers[name] = nil
	for _, a := range addrs {
		n.answers[name] = append(n.answers[name], netip.MustParseAddr(a))
	}
}

func policy(destinations ...string) *dial.Policy {
	a := &team.Agent{Name: "writer"}
	for _, d := range destinations {
		host, port, err := splitDestination(d)
		if err != nil {
			panic(err)
		}
		a.Egress = append(a.Egress, team.Destination{Host: host, Port: port})
	}
	return dial.NewPolicy(a)
}

type fixture struct {
	server *Server
	kernel *memory
	dns    *names
	conn   *wire.Conn
	path   string
}

func start(t *testing.T, ttl time.Duration, dialer uint32, p *dial.Policy) *fixture {
	t.Helper()
	f := &fixture{
		kernel: &memory{pins: map[string][]netip.AddrPort{}}, dns: &names{answers: map[string][]netip.Addr{}},
		path: filepath.Join(t.TempDir(), "pin.sock"),
	}
	f.server = New(Config{Table: f.kernel, Resolver: f.dns, TTL: ttl, Own: func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	}})
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.server.Add("bh-t-writer", dialer, ln, p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.server.Close() })
	f.connect(t)
	return f
}

func (f *fixture) connect(t *testing.T) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f.conn = wire.New(c)
	t.Cleanup(func() { _ = f.conn.Close() })
}

func (f *fixture) pin(t *testing.T, host string, port uint16) (wire.Pinned, deny.Code) {
	t.Helper()
	if err := f.conn.Send(1, wire.VerbPin, wire.DialRequest{Host: host, Port: port}); err != nil {
		t.Fatal(err)
	}
	m, _, err := f.conn.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var p wire.Pinned
	var d wire.Denied
	if m.Verb == wire.VerbDenied {
		err = json.Unmarshal(m.Body, &d)
	} else {
		err = json.Unmarshal(m.Body, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, d.Reason.Code
}

func me() uint32 { return uint32(os.Getuid()) } // #nosec G115 -- an id

func TestNothingIsPinnedThatTheGuardRefuses(t *testing.T) {
	f := start(t, time.Minute, me(), policy("api.example.com:443", "*.cdn.example.com:443"))
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.dns.given, []string{"*.cdn.example.com", "api.example.com"}) {
		t.Fatalf("the resolver was given %v", f.dns.given)
	}
	f.dns.set("api.example.com", nil, "8.8.8.8", "127.0.0.1")
	f.dns.set("meta.cdn.example.com", nil, "169.254.169.254")
	f.dns.set("own.cdn.example.com", nil, "93.184.216.34")
	for _, c := range []struct {
		host string
		port uint16
		code deny.Code
	}{
		{"API.example.com.", 443, ""},
		{"api.example.com", 80, deny.PortNotListed},
		{"evil.example", 443, deny.NotListed},
		{"meta.cdn.example.com", 443, deny.SpecialRange},
		{"own.cdn.example.com", 443, deny.OwnAddress},
		{"none.cdn.example.com", 443, deny.NameUnresolved},
		{"8.8.8.8", 443, deny.NotListed},
		{"0x08080808", 443, deny.BadTarget},
	} {
		if _, code := f.pin(t, c.host, c.port); code != c.code {
			t.Errorf("%s:%d: %q, want %q", c.host, c.port, code, c.code)
		}
	}
	if got := f.kernel.has(); !slices.Equal(got, []string{"api.example.com:443[8.8.8.8:443]"}) {
		t.Fatalf("pinned: %v", got)
	}
	n := f.server.Counters("bh-t-writer")
	if n.Pinned != 1 || n.Denied != 7 || n.ByCode[deny.NotListed] != 2 {
		t.Fatalf("%+v", n)
	}
	f.kernel.mu.Lock()
	f.kernel.fail = true
	f.kernel.mu.Unlock()
	if _, code := f.pin(t, "api.example.com", 443); code != deny.PinFailed {
		t.Fatalf("when the kernel refuses: %q", code)
	}
}

func TestLastGoodAnswerServesWhileDNSFails(t *testing.T) {
	f := start(t, time.Millisecond, me(), policy("api.example.com:443")) // a life so short that nothing is fresh
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	f.dns.set("api.example.com", errors.New("server failure"))
	if _, code := f.pin(t, "api.example.com", 443); code != deny.NameUnresolved {
		t.Fatalf("without an earlier answer: %q", code)
	}
	f.dns.set("api.example.com", nil, "8.8.8.8")
	if p, code := f.pin(t, "api.example.com", 443); code != "" || p.Stale {
		t.Fatalf("%+v %q", p, code)
	}
	time.Sleep(2 * time.Millisecond)
	f.dns.set("api.example.com", errors.New("server failure"))
	if p, code := f.pin(t, "api.example.com", 443); code != "" || !p.Stale || p.Age <= 0 || len(p.Addresses) != 1 {
		t.Fatalf("while DNS fails: %+v %q", p, code)
	}
	f.dns.set("api.example.com", fmt.Errorf("x: %w", resolver.ErrNotFound))
	if _, code := f.pin(t, "api.example.com", 443); code != deny.NameUnresolved {
		t.Fatalf("that the name is gone is an answer: %q", code)
	}
}

func TestNarrowerPolicyRevokes(t *testing.T) {
	f := start(t, time.Minute, me(), policy("api.example.com:443", "old.example.com:443"))
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	f.dns.set("api.example.com", nil, "8.8.8.8")
	f.dns.set("old.example.com", nil, "8.8.4.4")
	f.pin(t, "api.example.com", 443)
	f.pin(t, "old.example.com", 443)
	_ = f.kernel.PinFor("", "", []netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:1")}, 0, 0) // of nobody knows what
	if err := f.server.SetPolicy("bh-t-writer", policy("api.example.com:443")); err != nil {
		t.Fatal(err)
	}
	if got := f.kernel.has(); !slices.Equal(got, []string{"api.example.com:443[8.8.8.8:443]"}) {
		t.Fatalf("left: %v", got)
	}
	told := false
	for range 2 {
		m, _, err := f.conn.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var q wire.DialRequest
		if err := json.Unmarshal(m.Body, &q); err != nil || m.Verb != wire.VerbUnpin {
			t.Fatalf("%+v %v", m, err)
		}
		if q.Host == "old.example.com" && q.Port == 443 {
			told = true
			break
		}
	}
	if !told {
		t.Fatal("the dialer was not told")
	}
}

func TestADialerIsAnsweredLongAfterItWasToldOfARevocation(t *testing.T) {
	f := start(t, time.Minute, me(), policy("api.example.com:443", "old.example.com:443"))
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	f.dns.set("api.example.com", nil, "8.8.8.8")
	f.dns.set("old.example.com", nil, "8.8.4.4")
	f.pin(t, "old.example.com", 443)
	if err := f.server.SetPolicy("bh-t-writer", policy("api.example.com:443")); err != nil {
		t.Fatal(err)
	}
	if m, _, err := f.conn.Recv(); err != nil || m.Verb != wire.VerbUnpin {
		t.Fatalf("%+v %v", m, err)
	}
	time.Sleep(tellPatience + 100*time.Millisecond)
	_ = f.conn.Unix().SetReadDeadline(time.Now().Add(10 * time.Second)) // so that the old fault fails instead of hanging
	if p, code := f.pin(t, "api.example.com", 443); code != "" || len(p.Addresses) != 1 {
		t.Fatalf("%+v %q", p, code)
	}
}

func TestOnlyTheDialerMayAsk(t *testing.T) {
	f := start(t, time.Minute, me()+1, policy("api.example.com:443"))
	_, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion)
	if err == nil {
		t.Fatal("greeted")
	}
	if n := f.server.Counters("bh-t-writer"); n.ByCode[deny.BadPeer] != 1 {
		t.Fatalf("%+v", n)
	}
}
