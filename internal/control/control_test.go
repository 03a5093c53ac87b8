package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/control/protocol"
	"bulkhead/internal/identity/token"
)

// clock is set by tests.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func open(t testing.TB, dir string, c *clock) *Control {
	t.Helper()
	out, err := Open(dir, c.now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return out
}

func start() *clock { return &clock{time.Unix(1_800_000_000, 0).UTC()} }

// gateways gives verifiers that know what c says now: writer's, reviewer's and
// front's.
func gateways(t testing.TB, c *Control, k *clock) (writer, reviewer, front *token.Verifier) {
	t.Helper()
	writer = token.NewVerifier(token.Config{Team: "pair", Agent: "writer", Now: k.now})
	reviewer = token.NewVerifier(token.Config{Team: "pair", Agent: "reviewer", Now: k.now})
	front = token.NewVerifier(token.Config{Now: k.now})
	tell(t, c, writer, reviewer, front)
	return writer, reviewer, front
}

func tell(t testing.TB, c *Control, writer, reviewer, front *token.Verifier) {
	t.Helper()
	trusts, err := c.Trust(protocol.TrustRequest{Gateways: []protocol.Gateway{{Team: "pair", Agent: "writer"}, {Team: "pair", Agent: "reviewer"}}})
	if err != nil {
		t.Fatal(err)
	}
	for v, raw := range map[*token.Verifier]json.RawMessage{writer: trusts.Gateways[0], reviewer: trusts.Gateways[1], front: trusts.Front} {
		var one token.Trust
		if err := json.Unmarshal(raw, &one); err != nil {
			t.Fatal(err)
		}
		if v != front && bytes.Contains(raw, []byte(`"secret"`)) {
			t.Errorf("a gateway is told a secret: %s", raw)
		}
		if err := v.Refresh(one); err != nil {
			t.Fatal(err)
		}
	}
}

func issue(t testing.TB, c *Control, q protocol.Issue) *protocol.Issued {
	t.Helper()
	if q.Team == "" {
		q.Team = "pair"
	}
	if q.Agent == "" {
		q.Agent = "writer"
	}
	out, err := c.Issue(q)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func takes(v *token.Verifier, text string) bool { _, r := v.Verify(text); return r == nil }

func TestATokenIsTakenByItsAgentUntilItIsRevoked(t *testing.T) {
	for _, alg := range []string{"EdDSA", "RS256", "HS256"} {
		t.Run(alg, func(t *testing.T) {
			k := start()
			c := open(t, t.TempDir(), k)
			writer, reviewer, front := gateways(t, c, k)
			one := issue(t, c, protocol.Issue{Alg: alg, Rate: 5})
			two := issue(t, c, protocol.Issue{Alg: alg})
			if alg != "EdDSA" && takes(front, one.Token) {
				t.Error("front takes a key that it was not told of")
			}
			tell(t, c, writer, reviewer, front)
			if !takes(front, one.Token) || takes(writer, one.Token) == (alg == "HS256") || takes(reviewer, one.Token) {
				t.Errorf("front %t, writer %t, reviewer %t", takes(front, one.Token), takes(writer, one.Token), takes(reviewer, one.Token))
			}
			if _, err := c.Revoke(protocol.Revoke{ID: one.ID}); err != nil {
				t.Fatal(err)
			}
			tell(t, c, writer, reviewer, front)
			if takes(front, one.Token) || takes(writer, one.Token) {
				t.Error("a revoked token is taken")
			}
			if !takes(front, two.Token) {
				t.Error("another token ended as well")
			}
			k.at = k.at.Add(token.DefaultLife)
			tell(t, c, writer, reviewer, front)
			if takes(front, two.Token) {
				t.Error("taken after 30 days")
			}
		})
	}
}

func TestRotationOverlapsAndEnds(t *testing.T) {
	k := start()
	c := open(t, t.TempDir(), k)
	writer, reviewer, front := gateways(t, c, k)
	old := issue(t, c, protocol.Issue{})
	secret := issue(t, c, protocol.Issue{Alg: "HS256"})
	r, err := c.Rotate(protocol.Rotate{Overlap: time.Hour})
	if err != nil || len(r.Keys) != 2 || len(r.Former) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	fresh := issue(t, c, protocol.Issue{})
	if takes(writer, fresh.Token) {
		t.Error("a key is taken that nobody was told of")
	}
	tell(t, c, writer, reviewer, front)
	if !takes(writer, old.Token) || !takes(writer, fresh.Token) || !takes(front, secret.Token) {
		t.Error("the overlap does not hold")
	}
	k.at = k.at.Add(time.Hour)
	// Without hearing again: the end was told.
	front2 := token.NewVerifier(token.Config{Now: k.now, MaxAge: 2 * time.Hour})
	trusts, err := c.Trust(protocol.TrustRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var one token.Trust
	if err := json.Unmarshal(trusts.Front, &one); err != nil || len(one.Keys) != 2 {
		t.Fatalf("%+v, %v", one, err)
	}
	if err := front2.Refresh(one); err != nil {
		t.Fatal(err)
	}
	if takes(front2, old.Token) || takes(front2, secret.Token) || !takes(front2, fresh.Token) {
		t.Error("the overlap does not end")
	}
	files, err := os.ReadDir(filepath.Join(c.ring.dir))
	if err != nil || len(files) != 2 {
		t.Errorf("%d keys are kept, %v", len(files), err)
	}
	if _, err := c.Rotate(protocol.Rotate{}); err != nil {
		t.Fatal(err)
	}
	tell(t, c, writer, reviewer, front)
	if takes(front, fresh.Token) || takes(writer, fresh.Token) {
		t.Error("a rotation without overlap leaves a token")
	}
}

func TestARotationWithoutOverlapEndsEarlierOverlaps(t *testing.T) {
	k := start()
	c := open(t, t.TempDir(), k)
	old := issue(t, c, protocol.Issue{})
	for _, overlap := range []time.Duration{24 * time.Hour, 0} {
		if _, err := c.Rotate(protocol.Rotate{Overlap: overlap}); err != nil {
			t.Fatal(err)
		}
	}
	_, _, front := gateways(t, c, k)
	if takes(front, old.Token) {
		t.Error("it is taken still")
	}
}

func TestWhatWasAnsweredSurvivesACut(t *testing.T) {
	k := start()
	dir := t.TempDir()
	c := open(t, dir, k)
	var tokens []*protocol.Issued
	for range 4 {
		tokens = append(tokens, issue(t, c, protocol.Issue{}))
	}
	if _, err := c.Revoke(protocol.Revoke{ID: tokens[1].ID}); err != nil {
		t.Fatal(err)
	}
	whole := c.List(protocol.List{All: true})
	_ = c.Close()
	path := filepath.Join(dir, "tokens.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(raw[:len(raw)-1], '\n') + 1
	// A crash while a further line was written leaves any part of it.
	for _, extra := range []int{0, 1, len(raw) - last - 2} {
		if err := os.WriteFile(path, append(slices.Clone(raw), raw[last:last+extra]...), 0o600); err != nil {
			t.Fatal(err)
		}
		again := open(t, dir, k)
		if got := again.List(protocol.List{All: true}); len(got.Tokens) < 4 || got.Epoch != whole.Epoch || again.book.tokens[tokens[1].ID].Revoked == nil {
			t.Errorf("%d bytes more: %+v", extra, got)
		}
		issue(t, again, protocol.Issue{})
		_ = again.Close()
		if _, err := Open(dir, k.now); err != nil {
			t.Errorf("%d bytes more: what was written after it does not read: %v", extra, err)
		}
	}
	// What is corrupt elsewhere is not guessed.
	for at := 0; at < last; at += 7 {
		bad := slices.Clone(raw)
		bad[at] ^= 0x80
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := Open(dir, k.now)
		if err == nil {
			// Inside a string a byte may be another one; what was revoked must not
			// come back by it.
			if got := again.List(protocol.List{All: true}); len(got.Tokens) < 4 || got.Epoch < whole.Epoch {
				t.Errorf("byte %d: %+v", at, got)
			}
			_ = again.Close()
		} else if !errors.Is(err, errCorrupt) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
}

func TestALongListIsShortenedAtAStart(t *testing.T) {
	k := start()
	dir := t.TempDir()
	c := open(t, dir, k)
	var out bytes.Buffer
	for i := range 1200 {
		raw, err := json.Marshal(line{Op: opIssue, Token: &protocol.Token{ID: "old" + time.Duration(i).String(), Expires: k.at.Add(time.Minute)}})
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(raw, '\n'))
	}
	kept := issue(t, c, protocol.Issue{})
	epoch := c.List(protocol.List{}).Epoch
	_ = c.Close()
	path := filepath.Join(dir, "tokens.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(raw, out.Bytes()...), 0o600); err != nil {
		t.Fatal(err)
	}
	k.at = k.at.Add(time.Hour)
	again := open(t, dir, k)
	if got := again.List(protocol.List{}); len(got.Tokens) != 1 || got.Tokens[0].ID != kept.ID || got.Epoch != epoch {
		t.Errorf("%+v", got)
	}
	if st, err := os.Stat(path); err != nil || st.Size() > 2000 || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestAKeyThatOthersCanReadIsNotUsed(t *testing.T) {
	k := start()
	dir := t.TempDir()
	c := open(t, dir, k)
	kid := c.ring.keys[0].ID
	_ = c.Close()
	path := filepath.Join(dir, "keys", kid+".json")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st, err)
	}
	for name, change := range map[string]func() error{
		"readable by others": func() error { return os.Chmod(path, 0o644) },
		"under another name": func() error { return os.Rename(path, filepath.Join(dir, "keys", "other.json")) },
		"cut":                func() error { return os.Truncate(path, 40) },
		"a link": func() error {
			return errors.Join(os.Rename(path, filepath.Join(dir, "x")), os.Symlink(filepath.Join(dir, "x"), path))
		},
	} {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, k.now); err == nil {
			t.Errorf("%s: it is used", name)
		}
		_ = os.Remove(filepath.Join(dir, "keys", "other.json"))
		_ = os.Remove(path)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(dir, k.now); err != nil {
		t.Error(err)
	}
}

func TestNoTokenIsKept(t *testing.T) {
	k := start()
	dir := t.TempDir()
	c := open(t, dir, k)
	one := issue(t, c, protocol.Issue{Alg: "HS256"})
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte(one.Token[len(one.Token)-20:])) {
			t.Errorf("%s holds it", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBadRequestsChangeNothing(t *testing.T) {
	k := start()
	c := open(t, t.TempDir(), k)
	epoch := c.List(protocol.List{}).Epoch
	many := slices.Repeat([]string{strings.Repeat("d", 250)}, 64)
	for name, q := range map[string]protocol.Issue{
		"no agent":   {Team: "pair"},
		"no team":    {Agent: "writer"},
		"too long":   {Team: "pair", Agent: "writer", For: token.MaxLife + time.Second},
		"no time":    {Team: "pair", Agent: "writer", For: time.Nanosecond},
		"alg none":   {Team: "pair", Agent: "writer", Alg: "none"},
		"too large":  {Team: "pair", Agent: "writer", Domains: &many},
		"a negative": {Team: "pair", Agent: "writer", Rate: -1},
	} {
		if out, err := c.Issue(q); err == nil {
			t.Errorf("%s: %+v", name, out)
		}
	}
	if _, err := c.Revoke(protocol.Revoke{ID: "nobody's"}); err == nil {
		t.Error("an unknown id is revoked")
	}
	if got, err := c.Revoke(protocol.Revoke{}); err != nil || len(got.IDs) != 0 {
		t.Errorf("nothing named: %+v, %v", got, err)
	}
	if _, err := c.Rotate(protocol.Rotate{Overlap: -1}); err == nil {
		t.Error("a negative overlap")
	}
	if got := c.List(protocol.List{All: true}); got.Epoch != epoch || len(got.Tokens) != 0 {
		t.Errorf("%+v", got)
	}
}

// Whatever operators do and wherever control is started again, a token is taken
// exactly when it is neither revoked, expired, nor of an ended key.
func TestWhatIsTakenIsWhatTheListSays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := start()
		dir, err := os.MkdirTemp(t.TempDir(), "control") //nolint:usetesting // one for each run of the property
		if err != nil {
			rt.Fatal(err)
		}
		c, err := Open(dir, k.now)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		type model struct {
			*protocol.Issued
			ends    time.Time
			revoked bool
		}
		var all []*model
		epoch := uint64(0)
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				one, err := c.Issue(protocol.Issue{Team: "pair", Agent: "writer", For: time.Duration(rapid.IntRange(1, 100).Draw(rt, "for")) * time.Second})
				if err != nil {
					rt.Fatal(err)
				}
				all = append(all, &model{Issued: one, ends: one.Expires})
			case 2:
				if len(all) > 0 {
					m := rapid.SampledFrom(all).Draw(rt, "revoked")
					if _, err := c.Revoke(protocol.Revoke{ID: m.ID}); err == nil {
						m.revoked = true
					} else if k.at.Before(m.Expires) {
						rt.Fatal(err)
					}
				}
			case 3:
				r, err := c.Rotate(protocol.Rotate{Overlap: time.Duration(rapid.IntRange(0, 50).Draw(rt, "overlap")) * time.Second})
				if err != nil {
					rt.Fatal(err)
				}
				for _, m := range all {
					if m.ends.After(r.Until) && !m.revoked && slices.Contains(r.Former, kidOf(c, m.ID)) {
						m.ends = r.Until
					}
				}
			case 4:
				k.at = k.at.Add(time.Duration(rapid.IntRange(0, 40).Draw(rt, "later")) * time.Second)
				_ = c.Close()
				if c, err = Open(dir, k.now); err != nil {
					rt.Fatal(err)
				}
			}
			trusts, err := c.Trust(protocol.TrustRequest{Gateways: []protocol.Gateway{{Team: "pair", Agent: "writer"}}})
			if err != nil {
				rt.Fatal(err)
			}
			if trusts.Epoch < epoch {
				rt.Fatalf("the epoch went back from %d to %d", epoch, trusts.Epoch)
			}
			epoch = trusts.Epoch
			var one token.Trust
			if err := json.Unmarshal(trusts.Gateways[0], &one); err != nil {
				rt.Fatal(err)
			}
			v := token.NewVerifier(token.Config{Team: "pair", Agent: "writer", Now: k.now})
			if err := v.Refresh(one); err != nil {
				rt.Fatal(err)
			}
			for _, m := range all {
				if want := !m.revoked && k.at.Before(m.ends); takes(v, m.Token) != want {
					_, r := v.Verify(m.Token)
					rt.Fatalf("token %s: taken %t, want %t: %v", m.ID, !want, want, r)
				}
			}
		}
	})
}

func kidOf(c *Control, id string) string {
	if t := c.book.tokens[id]; t != nil {
		return t.Key
	}
	return ""
}

func FuzzBook(f *testing.F) {
	f.Add([]byte(`{"op":"issue","token":{"id":"a","team":"t","agent":"a","expires":"2099-01-01T00:00:00Z"}}` + "\n" + `{"op":"revoke","ids":["a"],"epoch":1}` + "\n"))
	f.Add([]byte(`{"op":"epoch","epoch":3}` + "\n" + `{"op":"epo`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b := &book{tokens: map[string]*protocol.Token{}}
		_, good, err := b.replay(raw)
		if err != nil {
			return
		}
		if good > len(raw) || bytes.IndexByte(raw[good:], '\n') >= 0 {
			t.Fatalf("%d of %d bytes are whole lines", good, len(raw))
		}
		// What was read is the same when it is written anew.
		b.path = filepath.Join(t.TempDir(), "b")
		if err := b.rewrite(); err != nil {
			return // a year beyond 9999 cannot be written
		}
		again, err := os.ReadFile(b.path)
		if err != nil {
			t.Fatal(err)
		}
		c := &book{tokens: map[string]*protocol.Token{}}
		if _, _, err := c.replay(again); err != nil || c.epoch != b.epoch || len(c.tokens) != len(b.tokens) {
			t.Fatalf("%q became %q: %v", raw, again, err)
		}
	})
}

func TestAListShowsWhatBoundsAToken(t *testing.T) {
	k, dir := start(), t.TempDir()
	c := open(t, dir, k)
	issue(t, c, protocol.Issue{Rate: 5, Memory: 6, Storage: 7, Domains: &[]string{"example.com"}})
	_ = c.Close()
	got := open(t, dir, k).List(protocol.List{}).Tokens
	if len(got) != 1 || got[0].Rate != 5 || got[0].Memory != 6 || got[0].Storage != 7 || got[0].Domains == nil {
		t.Errorf("%+v", got)
	}
}
