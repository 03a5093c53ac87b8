package pins

import (
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

func TestATemporaryDestinationIsPinnedForItsTimeOnly(t *testing.T) {
	f := start(t, time.Minute, me(), policy("api.example.com:443"))
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	f.dns.set("files.example.org", nil, "8.8.4.4")
	grant := wire.Grant{Target: "files.example.org:443", Until: time.Now().Add(20 * time.Second), At: time.Now()}
	if err := f.server.SetPolicy("bh-t-writer", policy("api.example.com:443").With([]wire.Grant{grant})); err != nil {
		t.Fatal(err)
	}
	p, code := f.pin(t, "files.example.org", 443)
	if code != "" || p.Expires.After(grant.Until.Add(time.Second)) || f.kernel.ttl > 20*time.Second || f.kernel.flow > 20*time.Second {
		t.Fatalf("%+v, %s; pinned for %s, flows for %s", p, code, f.kernel.ttl, f.kernel.flow)
	}
	// Over: the policy says so by itself, and its pins go with the next change.
	grant.Until = time.Now().Add(-time.Second)
	if err := f.server.SetPolicy("bh-t-writer", policy("api.example.com:443").With([]wire.Grant{grant})); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.conn.Recv(); err != nil { // unpin
		t.Fatal(err)
	}
	if _, code := f.pin(t, "files.example.org", 443); code != deny.NotListed || len(f.kernel.has()) != 0 {
		t.Errorf("%s; the kernel holds %v", code, f.kernel.has())
	}
}

func TestOnceIsOncePerGrantThoughAskedAtTheSameTime(t *testing.T) {
	f := start(t, time.Minute, me(), policy("api.example.com:443"))
	if _, err := f.conn.Greet(wire.PinProtocol, wire.PinVersion); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var spent []wire.Grant
	f.server.cfg.Spent = func(account string, g wire.Grant) {
		mu.Lock()
		defer mu.Unlock()
		if account == "bh-t-writer" {
			spent = append(spent, g)
		}
	}
	f.dns.set("files.example.org", nil, "8.8.4.4")
	grant := wire.Grant{Target: "files.example.org:443", Until: time.Now().Add(time.Hour), Once: true, At: time.Now()}
	allowed := policy("api.example.com:443").With([]wire.Grant{grant})
	if err := f.server.SetPolicy("bh-t-writer", allowed); err != nil {
		t.Fatal(err)
	}
	if _, reason, err := f.server.Pin(t.Context(), "bh-t-writer", "files.example.org", 443); reason != nil || err != nil {
		t.Fatal(reason, err) // the operator's look uses nothing up
	}
	granted := 0
	for i, host := range []string{"files.example.org", "FILES.example.org", "files.example.org."} {
		if err := f.conn.Send(uint64(i+1), wire.VerbPin, wire.DialRequest{Host: host, Port: 443}); err != nil { // #nosec G115 -- small
			t.Fatal(err)
		}
	}
	for range 3 {
		m, _, err := f.conn.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.Verb == wire.VerbPinned {
			granted++
		}
	}
	mu.Lock()
	if granted != 1 || len(spent) != 1 || f.kernel.ttl > onceTTL {
		t.Errorf("%d granted, spent %v, pinned for %s", granted, spent, f.kernel.ttl)
	}
	mu.Unlock()
	// The connection in use stays when the grant is written down as spent.
	grant.Spent = true
	if err := f.server.SetPolicy("bh-t-writer", policy("api.example.com:443").With([]wire.Grant{grant})); err != nil {
		t.Fatal(err)
	}
	if len(f.kernel.has()) != 1 {
		t.Errorf("the used destination's connection was cut: %v", f.kernel.has())
	}
	if _, code := f.pin(t, "files.example.org", 443); code != deny.NotListed {
		t.Errorf("a second use: %s", code)
	}
	// A new grant for the same destination counts for itself.
	grant.Spent, grant.At = false, grant.At.Add(time.Second)
	if err := f.server.SetPolicy("bh-t-writer", policy("api.example.com:443").With([]wire.Grant{grant})); err != nil {
		t.Fatal(err)
	}
	if _, code := f.pin(t, "files.example.org", 443); code != "" {
		t.Errorf("a new grant: %s", code)
	}
}
