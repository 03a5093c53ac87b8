package dial_test

import (
	"slices"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/wire"
)

func TestAGrantAllowsWhileItLivesAndNothingElse(t *testing.T) {
	now := time.Now()
	later, before := now.Add(time.Hour), now.Add(-time.Second)
	manifest := dial.NewPolicy(agent())
	p := manifest.With([]wire.Grant{
		{Target: "files.example.org:443", Until: later, At: now},
		{Target: "over.example.org:443", Until: before, At: now},
		{Target: "used.example.org:443", Until: later, Once: true, Spent: true, At: now},
		{Target: "used-and-over.example.org:443", Until: before, Once: true, Spent: true, At: now},
		{Target: "203.0.113.9:22", Until: later, At: now},
		{Target: "*.wild.example.org:443", Until: later, At: now},
		{Target: "dns.example.org:53", Until: later, At: now},
		{Target: "nonsense", Until: later, At: now},
	})
	for _, c := range []struct {
		host          string
		port          uint16
		allowed, keep bool
		granted       bool
	}{
		{"files.example.org", 443, true, true, true},
		{"FILES.example.org.", 443, true, true, true},
		{"files.example.org", 80, false, false, false},
		{"sub.files.example.org", 443, false, false, false},
		{"over.example.org", 443, false, false, false},
		{"used.example.org", 443, false, true, false},
		{"used-and-over.example.org", 443, false, false, false},
		{"203.0.113.9", 22, true, true, true},
		{"a.wild.example.org", 443, false, false, false},
		{"*.wild.example.org", 443, false, false, false},
		{"dns.example.org", 53, false, false, false},
		{"api.example.com", 443, true, true, false}, // of the manifest
	} {
		_, reason := p.Check(c.host, c.port)
		_, keep := p.Keeps(c.host, c.port)
		_, granted := p.Granted(c.host, c.port)
		if (reason == nil) != c.allowed || keep != c.keep || granted != c.granted {
			t.Errorf("%s:%d: %v, kept %t, granted %t; want %+v", c.host, c.port, reason, keep, granted, c)
		}
	}
	if _, r := manifest.Check("files.example.org", 443); r == nil || r.Code != deny.NotListed {
		t.Errorf("the manifest's own policy was changed: %v", r)
	}
	if names := p.Names(); !slices.Contains(names, "files.example.org") || slices.Contains(names, "*.wild.example.org") {
		t.Errorf("the resolver may ask for %v", names)
	}
}
