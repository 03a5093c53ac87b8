package token

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
)

// now is the time of every case.
var now = time.Unix(1_800_000_000, 0)

type keyring struct {
	ed, old, over, stranger ed25519.PrivateKey
	rsa                     *rsa.PrivateKey
	secret                  []byte
	trust                   Trust
	signers                 map[string]*Signer
}

var keys = sync.OnceValue(func() *keyring {
	seed := func(s string) ed25519.PrivateKey {
		sum := sha256.Sum256([]byte(s))
		return ed25519.NewKeyFromSeed(sum[:])
	}
	k := &keyring{ed: seed("ed"), old: seed("old"), over: seed("over"), stranger: seed("stranger"), secret: bytes.Repeat([]byte{7}, 32), signers: map[string]*Signer{}}
	var err error
	if k.rsa, err = rsa.GenerateKey(rand.Reader, minRSABits); err != nil {
		panic(err)
	}
	for _, one := range []struct {
		key     Key
		private any
	}{
		{Key{ID: "ed", Alg: EdDSA}, k.ed},
		{Key{ID: "ed-old", Alg: EdDSA, Until: now.Unix() + 1}, k.old},
		{Key{ID: "ed-over", Alg: EdDSA, Until: now.Unix()}, k.over},
		{Key{ID: "rsa", Alg: RS256}, k.rsa},
		{Key{ID: "hmac", Alg: HS256, Team: "pair", Agent: "writer"}, k.secret},
	} {
		s := &Signer{Key: one.key}
		if err := s.hold(one.private); err != nil {
			panic(err)
		}
		k.signers[s.ID] = s
		k.trust.Keys = append(k.trust.Keys, s.Key)
	}
	k.trust.Version, k.trust.Epoch, k.trust.Revoked = TrustVersion, 7, []string{"revoked-1"}
	return k
})

// verifier makes one that is in force at now.
func verifier(t testing.TB, by string) *Verifier {
	t.Helper()
	cfg := Config{Team: "pair", Agent: "writer", Now: func() time.Time { return now }}
	trust := keys().trust.For("pair", "writer")
	switch by {
	case "front":
		cfg.Team, cfg.Agent, trust = "", "", keys().trust
	case "vouched":
		cfg.Vouched = true
	}
	v := NewVerifier(cfg)
	if err := v.Refresh(trust); err != nil {
		t.Fatal(err)
	}
	return v
}

// oneCase is a line of testdata/tokens.jsonl.
type oneCase struct {
	Name, Want, By, Key     string
	Header, Payload         map[string]*string
	HeaderMore, PayloadMore string
	HeaderRaw, PayloadRaw   *string
	PayloadTail             string
	Shape                   *string
}

type member struct{ name, value string }

// build makes the token of a case.
func (c *oneCase) build(t testing.TB) string {
	t.Helper()
	key := c.Key
	if key == "" {
		key = "ed"
	}
	alg, kid := "EdDSA", key
	switch key {
	case "rsa":
		alg = "RS256"
	case "hmac", "hmac-wrong":
		alg, kid = "HS256", "hmac"
	case "stranger":
		kid = "ed"
	}
	b64 := base64.RawURLEncoding
	h := text(c.HeaderRaw, []member{{"alg", quote(alg)}, {"kid", quote(kid)}, {"typ", `"JWT"`}}, c.Header, c.HeaderMore)
	p := text(c.PayloadRaw, []member{
		{"sub", `"writer"`},
		{"team", `"pair"`},
		{"aud", `"bulkhead"`},
		{"quotas", `{"rateLimitPerMin":50}`},
		{"exp", "1800003600"},
		{"nbf", "1799999940"},
		{"iat", "1799999940"},
		{"jti", `"id-1"`},
		{"epoch", "6"},
	}, c.Payload, c.PayloadMore) + c.PayloadTail
	p = strings.ReplaceAll(p, "{ff}", "\xff")
	hb, pb := b64.EncodeToString([]byte(h)), b64.EncodeToString([]byte(p))
	s := b64.EncodeToString(sign(t, key, hb+"."+pb))
	if c.Shape == nil {
		return hb + "." + pb + "." + s
	}
	// The last character of 64 bytes carries four bits that count for nothing.
	last := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", s[len(s)-1])
	trailing := s[:len(s)-1] + string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[last^1])
	flipped := "A" + s[1:]
	if s[0] == 'A' {
		flipped = "B" + s[1:]
	}
	return strings.NewReplacer("{h}", hb, "{p}", pb, "{s}", s, "{S}", flipped, "{trailing}", trailing, "{million}", strings.Repeat("A", 1_000_000)).Replace(*c.Shape)
}

func text(raw *string, members []member, replaced map[string]*string, more string) string {
	if raw != nil {
		return *raw
	}
	var out []string
	seen := map[string]bool{}
	for _, m := range members {
		v, ok := replaced[m.name]
		seen[m.name] = true
		switch {
		case !ok:
			out = append(out, quote(m.name)+":"+m.value)
		case v != nil:
			out = append(out, quote(m.name)+":"+*v)
		}
	}
	for name, v := range replaced {
		if !seen[name] && v != nil {
			out = append(out, quote(name)+":"+*v)
		}
	}
	return "{" + strings.Join(out, ",") + more + "}"
}

func quote(s string) string { return strconv.Quote(s) }

func sign(t testing.TB, key, what string) []byte {
	t.Helper()
	k := keys()
	mac := func(secret []byte) []byte {
		m := hmac.New(sha256.New, secret)
		_, _ = m.Write([]byte(what))
		return m.Sum(nil)
	}
	switch key {
	case "ed":
		return ed25519.Sign(k.ed, []byte(what))
	case "ed-old":
		return ed25519.Sign(k.old, []byte(what))
	case "ed-over":
		return ed25519.Sign(k.over, []byte(what))
	case "stranger":
		return ed25519.Sign(k.stranger, []byte(what))
	case "rsa":
		sig, err := method(RS256).Sign(what, k.rsa)
		if err != nil {
			t.Fatal(err)
		}
		return sig
	case "hmac":
		return mac(k.secret)
	case "hmac-wrong":
		return mac(bytes.Repeat([]byte{8}, 32))
	case "rsa-public-as-hmac":
		return mac(k.signers["rsa"].Public)
	case "rsa-pem-as-hmac":
		return mac(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: k.signers["rsa"].Public}))
	case "ed-public-as-hmac":
		return mac(k.ed.Public().(ed25519.PublicKey))
	}
	t.Fatalf("no key %q", key)
	return nil
}

func cases(t testing.TB) []oneCase {
	t.Helper()
	f, err := os.Open("testdata/tokens.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []oneCase
	names := map[string]bool{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		var c oneCase
		d := json.NewDecoder(bytes.NewReader(s.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			t.Fatalf("%s: %v", s.Text(), err)
		}
		if names[c.Name] {
			t.Errorf("two cases are named %q", c.Name)
		}
		names[c.Name] = true
		out = append(out, c)
	}
	return out
}

func TestTokens(t *testing.T) {
	all := cases(t)
	if len(all) < 100 {
		t.Fatalf("%d cases", len(all))
	}
	for _, c := range all {
		token := c.build(t)
		claims, reason := verifier(t, c.By).Verify(token)
		switch {
		case c.Want == "" && reason != nil:
			t.Errorf("%s: %s", c.Name, reason.Why)
		case c.Want != "" && reason == nil:
			t.Errorf("%s: taken as %+v", c.Name, claims)
		case c.Want != "" && !strings.Contains(reason.Why, c.Want):
			t.Errorf("%s: refused because %q, want %q", c.Name, reason.Why, c.Want)
		}
		if reason == nil {
			continue
		}
		if e := reason.Envelope(); reason.Code != deny.BadToken || e.StatusCode != 401 {
			t.Errorf("%s: %+v", c.Name, e)
		}
		if len(token) > 20 && strings.Contains(reason.Error(), token[len(token)-20:]) {
			t.Errorf("%s: the reason holds the token", c.Name)
		}
	}
}

func TestAVerifierThatIsNotToldAnyMoreRefuses(t *testing.T) {
	at := now
	v := NewVerifier(Config{Team: "pair", Agent: "writer", Now: func() time.Time { return at }})
	token := (&oneCase{}).build(t)
	if _, r := v.Verify(token); r == nil || r.RetryAfter == 0 {
		t.Errorf("never told: %v", r)
	}
	trust := keys().trust.For("pair", "writer")
	if err := v.Refresh(trust); err != nil {
		t.Fatal(err)
	}
	at = now.Add(DefaultMaxAge)
	if _, r := v.Verify(token); r != nil {
		t.Errorf("at the end of the time: %v", r)
	}
	at = at.Add(time.Nanosecond)
	if _, r := v.Verify(token); r == nil {
		t.Error("taken after the time")
	}
	older := trust
	older.Epoch--
	if err := v.Refresh(older); !errors.Is(err, ErrStale) {
		t.Errorf("an older epoch: %v", err)
	}
	if _, r := v.Verify(token); r == nil {
		t.Error("what was refused renewed the time")
	}
	if err := v.Refresh(trust); err != nil {
		t.Fatal(err)
	}
	if _, r := v.Verify(token); r != nil {
		t.Errorf("told again: %v", r)
	}
	v.Forget()
	if _, r := v.Verify(token); r == nil {
		t.Error("taken after Forget")
	}
}

func TestATrustThatIsNotWholeChangesNothing(t *testing.T) {
	good := keys().trust
	ed, rs := good.Keys[0], good.Keys[3]
	for name, bad := range map[string]Trust{
		"another version":                   {Version: 2, Epoch: 9},
		"two keys of one id":                {Version: 1, Epoch: 9, Keys: []Key{ed, ed}},
		"an RSA key for EdDSA":              {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: EdDSA, Public: rs.Public}}},
		"an EdDSA key for RS256":            {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: RS256, Public: ed.Public}}},
		"no key":                            {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: EdDSA}}},
		"no id":                             {Version: 1, Epoch: 9, Keys: []Key{{Alg: EdDSA, Public: ed.Public}}},
		"an unknown algorithm":              {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: "none", Public: ed.Public}}},
		"an HS256 key of nobody":            {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: HS256, Secret: keys().secret}}},
		"a short HS256 secret":              {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: HS256, Secret: []byte("short"), Team: "t", Agent: "a"}}},
		"an HS256 key of nobody, vouched":   {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: HS256}}},
		"an HS256 key with EdDSA's content": {Version: 1, Epoch: 9, Keys: []Key{{ID: "x", Alg: HS256, Public: ed.Public, Secret: []byte{}, Team: "", Agent: "a"}}},
	} {
		v := verifier(t, "")
		if err := v.Refresh(bad); err == nil {
			t.Errorf("%s is taken", name)
		}
		if v.Epoch() != 7 {
			t.Errorf("%s changed the epoch", name)
		}
		if _, r := v.Verify((&oneCase{}).build(t)); r != nil {
			t.Errorf("%s changed the keys: %v", name, r)
		}
	}
}

func TestAGatewayIsToldNoSecret(t *testing.T) {
	raw, err := json.Marshal(keys().trust.For("pair", "writer"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte("secret")) {
		t.Errorf("%s", raw)
	}
	if other := keys().trust.For("pair", "reviewer"); len(other.Keys) != len(keys().trust.Keys)-1 {
		t.Errorf("another agent is told of %d keys", len(other.Keys))
	}
	if len(keys().trust.Keys[4].Secret) == 0 {
		t.Error("For changed what it was made from")
	}
}

func TestSignersComeBackFromDisk(t *testing.T) {
	for _, alg := range []Alg{EdDSA, RS256, HS256} {
		s, err := NewSigner(alg, "pair", "writer")
		if err != nil {
			t.Fatal(err)
		}
		private, err := s.Private()
		if err != nil {
			t.Fatal(err)
		}
		again, err := LoadSigner(Key{ID: s.ID, Alg: alg, Team: s.Team, Agent: s.Agent}, private)
		if err != nil {
			t.Fatal(err)
		}
		text, err := again.Issue(Claims{Agent: "writer", Team: "pair", ID: "1", IssuedAt: now.Unix(), NotBefore: now.Unix(), Expires: now.Unix() + 60})
		if err != nil {
			t.Fatal(err)
		}
		v := NewVerifier(Config{Now: func() time.Time { return now }})
		if err := v.Refresh(Trust{Version: 1, Keys: []Key{s.Key}}); err != nil {
			t.Fatal(err)
		}
		if _, r := v.Verify(text); r != nil {
			t.Errorf("%s: %v", alg, r)
		}
		other := map[Alg]Alg{EdDSA: RS256, RS256: EdDSA, HS256: EdDSA}[alg]
		if _, err := LoadSigner(Key{ID: s.ID, Alg: other}, private); err == nil {
			t.Errorf("a key of %s is loaded as one of %s", alg, other)
		}
	}
	if _, err := NewSigner(HS256, "", ""); err == nil {
		t.Error("an HS256 key for nobody")
	}
	if _, err := NewSigner("none", "", ""); err == nil {
		t.Error("a key for none")
	}
}

// What is issued is taken by who it is for and by nobody else, and no change of
// a single character is.
func TestWhatIsIssuedIsTakenAndNothingElse(t *testing.T) {
	v, other := verifier(t, ""), NewVerifier(Config{Team: "pair", Agent: "reviewer", Now: func() time.Time { return now }})
	if err := other.Refresh(keys().trust.For("pair", "reviewer")); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := Claims{
			Agent: "writer", Team: "pair", ID: rapid.StringMatching(`[A-Za-z0-9]{1,40}`).Draw(t, "id"),
			IssuedAt: now.Unix() - rapid.Int64Range(0, 1000).Draw(t, "age"), Epoch: rapid.Uint64Range(0, 7).Draw(t, "epoch"),
			Quotas: Quotas{RatePerMinute: rapid.IntRange(0, 1000).Draw(t, "rate"), StorageBytes: rapid.Int64Range(0, 1<<50).Draw(t, "storage")},
		}
		c.NotBefore = c.IssuedAt
		c.Expires = now.Unix() + rapid.Int64Range(1, 1_000_000).Draw(t, "life")
		if rapid.Bool().Draw(t, "narrowed") {
			d := rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,20}\.example`), 0, 5).Draw(t, "domains")
			c.Domains = &d
		}
		text, err := keys().signers[rapid.SampledFrom([]string{"ed", "ed-old"}).Draw(t, "key")].Issue(c)
		if err != nil {
			t.Fatal(err)
		}
		got, r := v.Verify(text)
		if r != nil {
			t.Fatal(r)
		}
		if got.ID != c.ID || got.Expires != c.Expires || got.Quotas != c.Quotas || (got.Domains == nil) != (c.Domains == nil) {
			t.Fatalf("%+v came back as %+v", c, got)
		}
		if _, r := other.Verify(text); r == nil {
			t.Fatal("another agent's gateway takes it")
		}
		i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		b := rapid.Byte().Draw(t, "byte")
		if changed := text[:i] + string([]byte{b}) + text[i+1:]; changed != text {
			if _, r := v.Verify(changed); r == nil {
				t.Fatalf("byte %d may be %q", i, b)
			}
		}
	})
}

func TestWhatAVerifierRefusesIsNotIssued(t *testing.T) {
	good := Claims{Agent: "writer", Team: "pair", ID: "1", IssuedAt: now.Unix(), NotBefore: now.Unix(), Expires: now.Unix() + 60}
	many := make([]string, 64)
	for i := range many {
		many[i] = strings.Repeat("d", 200)
	}
	for name, change := range map[string]func(*Claims){
		"no agent":      func(c *Claims) { c.Agent = "" },
		"no team":       func(c *Claims) { c.Team = "" },
		"no id":         func(c *Claims) { c.ID = "" },
		"a long life":   func(c *Claims) { c.Expires += int64(MaxLife / time.Second) },
		"no life":       func(c *Claims) { c.Expires = c.IssuedAt },
		"a large token": func(c *Claims) { c.Domains = &many },
	} {
		c := good
		change(&c)
		if _, err := keys().signers["ed"].Issue(c); err == nil {
			t.Errorf("%s is issued", name)
		}
	}
	c := good
	c.Agent = "reviewer"
	if _, err := keys().signers["hmac"].Issue(c); err == nil {
		t.Error("an agent's HS256 key signs for another agent")
	}
}

func FuzzVerify(f *testing.F) {
	for _, c := range cases(f) {
		if t := c.build(f); len(t) < 2000 {
			f.Add(t)
		}
	}
	known := map[string]bool{} // signed by this test
	for _, c := range cases(f) {
		known[c.build(f)] = true
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, by := range []string{"", "front"} {
			if c, r := verifier(t, by).Verify(text); r == nil && !known[text] {
				t.Errorf("%q is taken as %+v", text, c)
			}
		}
		// Where front vouches, the signature counts for nothing and the rest for all.
		if c, r := verifier(t, "vouched").Verify(text); r == nil && (c.Agent != "writer" || c.Team != "pair" || c.Audience != Audience || c.Expires <= now.Unix()) {
			t.Errorf("%q is taken as %+v", text, c)
		}
	})
}
