package net_test

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/primitive/net"
	"bulkhead/internal/tool"
)

// FuzzURL holds the reader against net/url: whatever both take leads to the
// same host and port.
func FuzzURL(f *testing.F) {
	data, err := os.ReadFile("testdata/urls.txt")
	if err != nil {
		f.Fatal(err)
	}
	for l := range strings.Lines(string(data)) {
		f.Add(escapes.Replace(strings.Split(l, " | ")[0]))
	}
	f.Fuzz(func(t *testing.T, raw string) {
		to, canonical, err := net.SplitURL(raw)
		if err != nil {
			return
		}
		again, same, err := net.SplitURL(canonical)
		if err != nil || again != to || same != canonical {
			t.Fatalf("%q: %q is not in its normal form: %q %q %v", raw, canonical, again, same, err)
		}
		u, err := url.Parse(raw)
		if err != nil {
			return // the other reader takes less
		}
		h, err := dial.Normalise(u.Host[:len(u.Host)-len(portOf(u))])
		if err != nil || !strings.HasPrefix(to, h.String()) && !strings.HasPrefix(to, "["+h.String()+"]") {
			t.Fatalf("%q leads to %s, and to %q for net/url (%v)", raw, to, u.Host, err)
		}
	})
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return ":" + p
	}
	return ""
}

func FuzzRedirect(f *testing.F) {
	for _, l := range []string{"/x", "//evil.example/x", "https://evil.example", "x", "?q", "#f", `\\evil.example`, "http:/x", "https:x", "//user@evil.example", "///x"} {
		f.Add(l)
	}
	f.Fuzz(func(t *testing.T, location string) {
		to, scheme, err := net.Follow("https://api.example.com/a/b?c", location)
		if err != nil || to == "api.example.com:443" {
			return
		}
		// Elsewhere only by saying so.
		if !strings.Contains(location, "//") || scheme != "https" && scheme != "http" {
			t.Fatalf("%q leads to %s by %s", location, to, scheme)
		}
	})
}

// TestScope holds that a grant is bound to what the exchange reads, scheme and all, and
// that what it does not read has no scope to be bound to.
func TestScope(t *testing.T) {
	for raw, want := range map[string]string{
		"https://API.example.com/x?q": "https://api.example.com:443", "https://h:8443": "https://h:8443", "http://h:8443/": "http://h:8443", "http://h": "http://h:80",
		"https://h ": "", "https://h:0443/": "", "https://h\\@evil/": "", "h:443": "", "": "",
	} {
		for _, row := range net.New(net.Config{}).List() {
			if row.Scope == nil {
				t.Fatalf("%s has no scope", row.Name)
			}
			if !strings.HasPrefix(row.Name, "net_http_") {
				continue
			}
			got, reason := row.Scope(tool.Input{"url": raw})
			if got != want || (got == "") != (reason != nil) || reason != nil && (reason.Code != deny.ToolInvalid || reason.Fields[0].Name != "url") {
				t.Errorf("%s %q: %q, %v", row.Name, raw, got, reason)
			}
		}
	}
}
