package net_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/primitive/net"
	"bulkhead/internal/team"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// The table is the guard's own, with both edges of each range of IANA's
// registries. A name that is listed resolves to each address in turn.
func TestAListedNameLeadsToNoSpecialAddress(t *testing.T) {
	var now atomic.Value
	cfg := way(t, &team.Agent{Name: "writer", Egress: []team.Destination{{Host: "*.example.com", Port: 443, SNI: team.SNIExact}}}, nil,
		func(string) []netip.Addr { return []netip.Addr{now.Load().(netip.Addr)} }, 0)
	d, _ := serve(t, cfg)
	for i, l := range lines(t, "../../dial/testdata/addresses.txt") {
		f := strings.Fields(l)
		addr := netip.MustParseAddr(f[0])
		now.Store(addr)
		name := fmt.Sprintf("n%d.example.com", i)
		raw, reason := d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer"}, "net_dns_resolve", object(t, map[string]string{"hostname": name}))
		if f[1] == "global" { // whose answer is told; nothing is connected to
			var out net.Resolved
			if err := json.Unmarshal(raw, &out); reason != nil || err != nil || len(out.Addresses) != 1 || out.Addresses[0] != addr || out.Hostname != name {
				t.Errorf("%s: %s %v", l, raw, reason)
			}
		} else {
			if reason == nil || reason.Code != deny.SpecialRange {
				t.Errorf("%s: resolve: %s %v", l, raw, reason)
			}
			if _, reason := answered(t, d, "net_http_get", map[string]any{"url": "https://" + name + "/"}); reason == nil || reason.Code != deny.SpecialRange {
				t.Errorf("%s: get: %v", l, reason)
			}
		}
		// And by its own number, which nobody lists.
		literal := dial.Host{Addr: addr}.String()
		if addr.Is6() {
			literal = "[" + literal + "]"
		}
		if _, reason := answered(t, d, "net_http_get", map[string]any{"url": "https://" + literal + "/"}); reason == nil || reason.Code != deny.NotListed {
			t.Errorf("%s: by number: %v", l, reason)
		}
	}
}

// The name's owner answers with a good address when it is checked and with
// another one afterwards. There is no afterwards: who checks is who pins, and
// what is pinned is what is dialled.
func TestANameThatChangesItsAddressGainsNothing(t *testing.T) {
	hit := atomic.Bool{}
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hit.Store(true) }))
	defer inner.Close()
	port := portOfServer(inner)
	var asked atomic.Int32
	good, bad := netip.MustParseAddr("93.184.215.14"), loopback
	cfg := way(t, &team.Agent{Name: "writer", Egress: []team.Destination{{Host: "rebind.example.com", Port: port, SNI: team.SNIAny}}}, nil,
		func(string) []netip.Addr {
			if asked.Add(1) == 1 {
				return []netip.Addr{good}
			}
			return []netip.Addr{bad}
		}, 40*time.Millisecond)
	d, _ := serve(t, cfg)
	raw, reason := d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer"}, "net_dns_resolve", object(t, map[string]string{"hostname": "rebind.example.com"}))
	if reason != nil || !strings.Contains(string(raw), good.String()) {
		t.Fatalf("%s %v", raw, reason)
	}
	for reason == nil && t.Context().Err() == nil { // until the good answer is over
		_, reason = d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer"}, "net_dns_resolve", object(t, map[string]string{"hostname": "rebind.example.com"}))
	}
	if reason == nil || reason.Code != deny.SpecialRange {
		t.Fatalf("the second answer: %v", reason)
	}
	_, reason = answered(t, d, "net_http_get", map[string]any{"url": fmt.Sprintf("http://rebind.example.com:%d/", port)})
	if reason == nil || reason.Code != deny.SpecialRange || hit.Load() {
		t.Errorf("%v; the inner server was reached: %t", reason, hit.Load())
	}
}

func TestOnlyListedNamesAreAskedAbout(t *testing.T) {
	var asked []string
	a := urlAgent()
	a.Hosts = fixed("api.example.com")
	grants := []wire.Grant{
		{Target: "later.example:443", Until: time.Now().Add(time.Hour)},
		{Target: "once.example:443", Until: time.Now().Add(time.Hour), Once: true},
	}
	cfg := way(t, a, grants, func(name string) []netip.Addr {
		asked = append(asked, name)
		return []netip.Addr{netip.MustParseAddr("93.184.215.14")}
	}, 0)
	d, _ := serve(t, cfg)
	for name, want := range map[string]string{
		"api.example.com": "127.0.0.1", "API.example.com.": "127.0.0.1", "host": "127.0.0.1", "x.cdn.example.com": "93.184.215.14", "bücher.example": "93.184.215.14",
		"later.example": "93.184.215.14", "once.example": string(deny.ToolNotAllowed), "evil.example": string(deny.NotListed), "cdn.example.com": string(deny.NotListed),
		"192.0.2.7": string(deny.ToolInvalid), "::1": string(deny.ToolInvalid), "0x7f.1": string(deny.ToolInvalid), "a b": string(deny.ToolInvalid),
		"exfil." + strings.Repeat("a", 50) + ".evil.example": string(deny.NotListed), strings.Repeat("a", 260): string(deny.ToolInvalid),
	} {
		raw, reason := d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer"}, "net_dns_resolve", object(t, map[string]string{"hostname": name}))
		got := string(raw)
		if reason != nil {
			got = string(reason.Code)
		}
		if reason != nil && got != want || reason == nil && !strings.Contains(got, `"`+want+`"`) {
			t.Errorf("%s: %s %v, want %s", name, raw, reason, want)
		}
	}
	for _, name := range asked {
		if strings.Contains(name, "evil") || name == "once.example" {
			t.Errorf("DNS was asked for %s", name)
		}
	}
	// A token that does not cover the name.
	if _, reason := d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer", Domains: []string{"*.example.org"}}, "net_dns_resolve", object(t, map[string]string{"hostname": "api.example.com"})); reason == nil || reason.Code != deny.ToolNotAllowed {
		t.Error(reason)
	}
}
