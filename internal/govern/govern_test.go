package govern

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool/tooltest"
	"bulkhead/internal/wire"
)

func open(t testing.TB, now *time.Time) (*Book, *store.Store) {
	t.Helper()
	clock := func() time.Time { return *now }
	s := tooltest.Store(t, func(c *store.Config) { c.Now = clock })
	b, err := Open(t.Context(), s, clock)
	if err != nil {
		t.Fatal(err)
	}
	return b, s
}

func give(t testing.TB, b *Book, q wire.DecideRequest, a Asked) (*wire.Permit, error) {
	t.Helper()
	return b.Decide(t.Context(), func(tx *store.Tx) (*wire.Permit, error) {
		p, r := NewPermit(q, a, "x", tx.Now())
		if r != nil {
			return nil, r
		}
		return p, nil
	})
}

func TestAsManyGrantsAsMay(t *testing.T) {
	now := time.Now()
	b, _ := open(t, &now)
	a := Asked{Tool: "mem_set"}
	for range maxPermits - 1 {
		if _, err := give(t, b, wire.DecideRequest{Kind: wire.PermitAlways, Wide: true}, a); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := give(t, b, wire.DecideRequest{Kind: wire.PermitFor, For: time.Minute, Wide: true}, a); err != nil {
		t.Fatal(err)
	}
	if _, err := give(t, b, wire.DecideRequest{Kind: wire.PermitAlways, Wide: true}, a); err == nil {
		t.Error("there is no bound")
	}
	now = now.Add(time.Minute) // one is over, and gives its place back
	if _, err := give(t, b, wire.DecideRequest{Kind: wire.PermitAlways, Wide: true}, a); err != nil {
		t.Error(err)
	}
	if n := len(b.List()); n != maxPermits {
		t.Errorf("%d grants", n)
	}
	if err := b.Revoke(t.Context(), "gnonesuch", record.Record{Kind: record.Approval}); err == nil {
		t.Error("what is not there was revoked")
	}
}

// model is what a book should say, from the words of docs/contracts/approvals.md.
type model struct {
	kind, id      string
	a             Asked
	exact, wide   bool
	until         time.Time
	revoked, over bool
}

// Whatever is given, revoked and over: a call is covered exactly when a grant that is
// in force says so, also after the gateway was started anew.
func TestACallIsCoveredExactlyWhenAGrantSaysSo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := time.UnixMilli(1_800_000_000_000)
		b, s := open(t, &now)
		asked := rapid.Custom(func(t *rapid.T) Asked {
			return Asked{
				Tool: rapid.SampledFrom([]string{"t1", "t2"}).Draw(t, "tool"), Scope: rapid.SampledFrom([]string{"", "h1", "h2"}).Draw(t, "scope"),
				Digest: rapid.SampledFrom([]string{"d1", "d2"}).Draw(t, "digest"), Token: rapid.SampledFrom([]string{"", "k"}).Draw(t, "token"),
			}
		})
		var all []*model
		rt.Repeat(map[string]func(*rapid.T){
			"give": func(rt *rapid.T) {
				if len(all) > 20 {
					return
				}
				m := &model{kind: rapid.SampledFrom([]string{wire.PermitSession, wire.PermitFor, wire.PermitAlways}).Draw(rt, "kind"), a: asked.Draw(rt, "asked")}
				q := wire.DecideRequest{Kind: m.kind}
				switch rapid.IntRange(0, 2).Draw(rt, "bound") {
				case 1:
					q.Exact, m.exact = true, true
				case 2:
					q.Wide, m.wide = true, true
				}
				if m.kind == wire.PermitFor {
					q.For = time.Duration(rapid.IntRange(1, 60).Draw(rt, "seconds")) * time.Second
					m.until = now.Add(q.For)
				}
				p, err := give(t, b, q, m.a)
				if m.a.Scope == "" && !m.exact && !m.wide {
					if err == nil {
						rt.Fatalf("%+v: a grant for any input that nobody asked for", p)
					}
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				m.id = p.ID
				all = append(all, m)
			},
			"revoke": func(rt *rapid.T) {
				if len(all) == 0 {
					return
				}
				m := all[rapid.IntRange(0, len(all)-1).Draw(rt, "which")]
				err := b.Revoke(t.Context(), m.id, record.Record{Kind: record.Approval})
				if err == nil {
					m.revoked = true
				}
			},
			"later": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 30).Draw(rt, "seconds")) * time.Second)
			},
			"sessionEnd": func(rt *rapid.T) { endSessions(all); check(rt, b.EndSession(t.Context())) },
			"restart": func(rt *rapid.T) {
				endSessions(all)
				var err error
				b, err = Open(t.Context(), s, func() time.Time { return now })
				check(rt, err)
			},
			"": func(rt *rapid.T) {
				a := asked.Draw(rt, "call")
				want := false
				for _, m := range all {
					want = want || !m.revoked && !m.over && (m.until.IsZero() || now.Before(m.until)) && m.a.Tool == a.Tool && m.a.Token == a.Token &&
						(!m.exact || m.a.Digest == a.Digest) && (m.wide || m.a.Scope == "" && m.exact || m.a.Scope == a.Scope)
				}
				if by, got := b.Find(a); got != want || got != (by != "") {
					rt.Fatalf("%+v is covered: %t (%s), want %t", a, got, by, want)
				}
			},
		})
	})
}

func endSessions(all []*model) {
	for _, m := range all {
		m.over = m.over || m.kind == wire.PermitSession
	}
}

func check(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzNewPermit holds that whatever is asked for, a grant is no wider than the call.
func FuzzNewPermit(f *testing.F) {
	f.Add("for", int64(time.Hour), true, false, "h:443")
	f.Add("always", int64(0), false, true, "h:443")
	f.Add("always", int64(0), false, false, "")
	f.Add("once", int64(-1), false, false, "h:443")
	f.Add("FOR", int64(1<<62), true, true, "")
	f.Fuzz(func(t *testing.T, kind string, span int64, exact, wide bool, scope string) {
		now := time.UnixMilli(1_800_000_000_000)
		a := Asked{Tool: "t", Scope: scope, Digest: "d", Token: "k"}
		p, r := NewPermit(wire.DecideRequest{Kind: kind, For: time.Duration(span), Exact: exact, Wide: wide}, a, "x", now)
		switch {
		case r != nil:
			if p != nil || r.Code != deny.ToolInvalid {
				t.Fatalf("%+v, %v", p, r)
			}
			return
		case p == nil:
			if kind != "" && kind != wire.PermitOnce {
				t.Fatalf("%q gives nothing", kind)
			}
			return
		}
		if p.Tool != "t" || p.Token != "k" || p.Scope != scope && !wide || scope == "" && !exact && !wide || exact != (p.Digest != "") || exact && wide ||
			(p.Kind == wire.PermitFor) != !p.Until.IsZero() || !p.Until.IsZero() && (!p.Until.After(now) || p.Until.After(now.Add(MaxFor))) {
			t.Fatalf("%+v", p)
		}
	})
}
