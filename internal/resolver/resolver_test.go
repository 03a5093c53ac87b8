package resolver_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"bulkhead/internal/resolver"
)

// server is a DNS server on loopback that counts and can be made to fail.
type server struct {
	addr   string
	asked  atomic.Int64
	broken atomic.Bool
}

func startDNS(t *testing.T) *server {
	t.Helper()
	s := &server{}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = pc.LocalAddr().String()
	srv := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		s.asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		name, kind := q.Question[0].Name, q.Question[0].Qtype
		switch {
		case s.broken.Load():
			m.Rcode = dns.RcodeServerFailure
		case strings.HasPrefix(name, "gone."):
			m.Rcode = dns.RcodeNameError
		case strings.HasPrefix(name, "empty."):
		case strings.HasPrefix(name, "many.") && kind == dns.TypeA:
			for i := range 30 {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(8, 8, 8, byte(i))})
			}
		case kind == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(8, 8, 4, 4)})
		case kind == dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET, Ttl: 1}, AAAA: net.ParseIP("2606:4700::1111")})
		}
		_ = w.WriteMsg(m)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { _ = srv.Shutdown(); <-done })
	return s
}

func serve(t *testing.T, path, dnsServer string, client uint32) (stop func()) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- resolver.Serve(ctx, ln, resolver.Config{Client: client, Resolver: &net.Resolver{
			PreferGo: true,
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "udp", dnsServer)
			},
		}})
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyGivenNamesAreAsked(t *testing.T) {
	d := startDNS(t)
	path := filepath.Join(t.TempDir(), "r.sock")
	stop := serve(t, path, d.addr, uint32(os.Getuid())) // #nosec G115 -- an id
	c := resolver.NewClient(path)
	defer func() { _ = c.Close() }()
	c.SetNames([]string{"api.example.com", "*.cdn.example.com", "gone.example.com", "empty.example.com", "many.example.com"})

	got, err := c.Lookup(t.Context(), "api.example.com")
	if want := []netip.Addr{netip.MustParseAddr("8.8.4.4"), netip.MustParseAddr("2606:4700::1111")}; err != nil || !slices.Equal(slices.SortedFunc(slices.Values(got), netip.Addr.Compare), want) {
		t.Fatalf("%v %v", got, err)
	}
	if got, err = c.Lookup(t.Context(), "a.b.cdn.example.com"); err != nil || len(got) != 2 {
		t.Fatalf("below a suffix: %v %v", got, err)
	}
	if got, err = c.Lookup(t.Context(), "many.example.com"); err != nil || len(got) != resolver.MaxAddresses {
		t.Fatalf("many: %d, %v", len(got), err)
	}
	for _, name := range []string{"gone.example.com", "empty.example.com"} {
		if _, err := c.Lookup(t.Context(), name); !errors.Is(err, resolver.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	before := d.asked.Load()
	for _, name := range []string{"evil.example", "cdn.example.com", "*.cdn.example.com", "xcdn.example.com", "api.example.com.evil.example", ""} {
		if _, err := c.Lookup(t.Context(), name); err == nil || errors.Is(err, resolver.ErrNotFound) {
			t.Errorf("%q: %v, want a refusal", name, err)
		}
	}
	if n := d.asked.Load() - before; n != 0 {
		t.Errorf("DNS was asked %d times for names that were not given", n)
	}
	d.broken.Store(true)
	if _, err := c.Lookup(t.Context(), "api.example.com"); err == nil || errors.Is(err, resolver.ErrNotFound) {
		t.Errorf("a failing server: %v, want a failure and not an answer", err)
	}
	d.broken.Store(false)
	c.SetNames([]string{"evil.example"})
	if _, err := c.Lookup(t.Context(), "api.example.com"); err == nil {
		t.Error("a name that was taken back is still asked")
	}
	stop()
	if _, err := c.Lookup(t.Context(), "evil.example"); err == nil {
		t.Error("an answer without a resolver")
	}
	stop = serve(t, path, d.addr, uint32(os.Getuid())) // #nosec G115 -- an id
	if _, err := c.Lookup(t.Context(), "evil.example"); err != nil {
		t.Errorf("after its restart: %v", err)
	}
	stop()
}

func TestAnotherIDIsTurnedAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.sock")
	stop := serve(t, path, "127.0.0.1:1", uint32(os.Getuid())+1) // #nosec G115 -- an id
	defer stop()
	c := resolver.NewClient(path)
	defer func() { _ = c.Close() }()
	c.SetNames([]string{"api.example.com"})
	if _, err := c.Lookup(t.Context(), "api.example.com"); err == nil {
		t.Fatal("answered")
	}
}
