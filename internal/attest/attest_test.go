package attest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newKey(t testing.TB) (ed25519.PrivateKey, Keys) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := KeyID(pub)
	if err != nil {
		t.Fatal(err)
	}
	return key, Keys{id: pub}
}

func statement(t testing.TB, verify, prove string) *Statement {
	t.Helper()
	digest := map[string]string{"sha256": strings.Repeat("ab", 32)}
	s, err := New([]Resource{{Name: "manifest", Digest: digest}, {Name: "kernel", Digest: digest, Annotations: map[string]string{"release": "6.12"}}},
		[]Resource{{Name: "program bulkhead-warden", Digest: digest}}, Evidence{
			Team: "pair", Time: time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC), Build: "b1", Kernel: "6.12 x86_64",
			Verify: json.RawMessage(verify), Prove: json.RawMessage(prove), NotCovered: []string{"errors of the kernel"},
		})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fixture(t testing.TB, name string) string {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func signed(t testing.TB) ([]byte, ed25519.PrivateKey, Keys) {
	t.Helper()
	key, keys := newKey(t)
	file, err := Sign(statement(t, fixture(t, "verify.json"), fixture(t, "prove.json")), key)
	if err != nil {
		t.Fatal(err)
	}
	return file, key, keys
}

func TestWhatWasSignedIsOpened(t *testing.T) {
	file, _, keys := signed(t)
	o, err := Open(file, keys)
	if err != nil {
		t.Fatal(err)
	}
	p := o.Statement.Predicate
	if p.Result != Failed || o.Statement.Type != StatementType {
		t.Errorf("%s, %s", p.Result, o.Statement.Type)
	}
	want := []string{"attack/reader/runtime/file.other", "control/net.dns_udp/runtime/nftables", "statement/writer/limits"}
	if d := cmp.Diff(want, p.FailedTests); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"attack/writer/runtime/net.vsock", "control/file.other/account/user-id"}, p.WarnedTests); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"attack/writer/gateway/file.other", "control/file.other/runtime/user-id", "statement/writer/egress.dialer"}, p.PassedTests); d != "" {
		t.Error(d)
	}
}

// replaced gives the file with another payload under the old signature.
func replaced(t *testing.T, file []byte, change func([]byte) []byte) []byte {
	t.Helper()
	var e envelope
	if err := json.Unmarshal(file, &e); err != nil {
		t.Fatal(err)
	}
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	e.Payload = base64.StdEncoding.EncodeToString(change(payload))
	out, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// resigned gives a file with a payload of another form that is signed properly.
func resigned(t *testing.T, key ed25519.PrivateKey, payloadType string, payload []byte) []byte {
	t.Helper()
	pub, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		t.Fatal("no key")
	}
	id, err := KeyID(pub)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(envelope{
		payloadType, base64.StdEncoding.EncodeToString(payload),
		[]signature{{id, base64.StdEncoding.EncodeToString(ed25519.Sign(key, preAuthentication(payloadType, payload)))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFilesThatAreRefused(t *testing.T) {
	file, key, keys := signed(t)
	_, others := newKey(t)
	var e envelope
	if err := json.Unmarshal(file, &e); err != nil {
		t.Fatal(err)
	}
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) []byte {
		out := bytes.Replace(file, []byte(old), []byte(new), 1)
		if bytes.Equal(out, file) {
			t.Fatalf("%q is not in the file", old)
		}
		return out
	}
	foreign, _ := newKey(t)
	forged, err := Sign(statement(t, fixture(t, "verify.json"), fixture(t, "prove.json")), foreign)
	if err != nil {
		t.Fatal(err)
	}
	var f envelope
	if err := json.Unmarshal(forged, &f); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		file []byte
		keys Keys
		want error
	}{
		{"an altered payload", replaced(t, file, func(p []byte) []byte { return bytes.Replace(p, []byte("FAILED"), []byte("PASSED"), 1) }), keys, ErrSignature},
		{"an unknown key", file, others, ErrUnknownKey},
		{"no key at all", file, Keys{}, ErrUnknownKey},
		{"another's signature under a known key's name", bytes.Replace(forged, []byte(f.Signatures[0].KeyID), []byte(e.Signatures[0].KeyID), 1), keys, ErrSignature},
		{"another payload type", edit(PayloadType, "application/json"), keys, ErrFormat},
		{"another payload type that was signed", resigned(t, key, "application/json", payload), keys, ErrFormat},
		{"a key of the envelope twice", edit(`{"payloadType"`, `{"payload":"e30=","payloadType"`), keys, ErrFormat},
		{"a key twice in another case", edit(`{"payloadType"`, `{"PAYLOAD":"e30=","payloadType"`), keys, ErrFormat},
		{"a key twice by a letter that folds", edit(`{"payloadType"`, `{"ſignatures":[],"payloadType"`), keys, ErrFormat},
		{"an unknown key of the envelope", edit(`{"payloadType"`, `{"more":1,"payloadType"`), keys, ErrFormat},
		{"text behind the end", append(bytes.Clone(file), "{}"...), keys, ErrFormat},
		{"two signatures", edit(`"signatures":[`, `"signatures":[{"keyid":"","sig":""},`), keys, ErrFormat},
		{"no signature", []byte(`{"payloadType":"` + PayloadType + `","payload":"e30=","signatures":[]}`), keys, ErrFormat},
		{"base64 with a line break", edit(`"payload":"`, `"payload":"\n`), keys, ErrFormat},
		{"an empty file", nil, keys, ErrFormat},
		{"a cut file", file[:len(file)/2], keys, ErrFormat},
		{"bytes that are not UTF-8", append([]byte("\xff"), file...), keys, ErrFormat},
		{"a signed payload with a key twice", resigned(t, key, PayloadType, bytes.Replace(payload, []byte(`{"_type"`), []byte(`{"predicateType":"x","_type"`), 1)), keys, ErrFormat},
		{"a signed payload with text behind", resigned(t, key, PayloadType, append(bytes.Clone(payload), '1')), keys, ErrFormat},
		{"a signed statement of another kind", resigned(t, key, PayloadType, bytes.Replace(payload, []byte(PredicateType), []byte("https://slsa.dev/provenance/v1"), 1)), keys, ErrFormat},
		{"a signed statement of another version", resigned(t, key, PayloadType, bytes.Replace(payload, []byte("Statement/v1"), []byte("Statement/v2"), 1)), keys, ErrFormat},
		{"a signed statement without a subject's digest", resigned(t, key, PayloadType, bytes.Replace(payload, []byte(strings.Repeat("ab", 32)), []byte("ab"), 1)), keys, ErrFormat},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, err := Open(tc.file, tc.keys)
			if !errors.Is(err, tc.want) || o != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestResultFollowsFromTheReports(t *testing.T) {
	verify := `{"schemaVersion":1,"denied":1,"rows":[{"agent":"w","position":"runtime","attack":"a","verdict":"denied"}],"controls":{"rows":[{"attack":"a","mechanism":"m","position":"runtime","bit":true}]}}`
	prove := `{"schemaVersion":1,"statements":[{"id":"ids","agent":"w","holds":true}]}`
	for _, tc := range []struct{ name, verify, prove, want string }{
		{"everything held", verify, prove, Passed},
		{"one attempt was not run", strings.Replace(verify, `"denied"}`, `"not_run"}`, 1), prove, Warned},
		{"controls were skipped", strings.Replace(verify, `"rows":[{"attack"`, `"rows":[],"x":[{"attack"`, 1), prove, Warned},
		{"an attack was answered by an unknown word", strings.Replace(verify, `"denied"}`, `"perhaps"}`, 1), prove, Failed},
		{"a control did not bite", strings.Replace(verify, `"bit":true`, `"bit":false`, 1), prove, Failed},
		{"a statement does not hold", verify, strings.Replace(prove, "true", "false", 1), Failed},
		{"nothing was tried", `{"schemaVersion":1}`, `{"schemaVersion":1}`, Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := statement(t, tc.verify, tc.prove).Predicate.Result; got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestDifferencesNameWhatGotWorse(t *testing.T) {
	verify, prove := fixture(t, "verify.json"), fixture(t, "prove.json")
	before := statement(t, verify, prove)
	worse := strings.Replace(prove, `"holds": true`, `"holds": false`, 1)
	worse = strings.Replace(worse, "192.0.2.1", "192.0.2.9", 1)
	list, err := Differences(before, statement(t, verify, worse))
	if err != nil {
		t.Fatal(err)
	}
	want := []Difference{
		{What: "statement/writer/egress.dialer", Before: "passed", After: "failed", Worse: true},
		{What: "read for statement/writer/egress.dialer: tcp to 192.0.2.1 port 443", Before: "there"},
		{What: "read for statement/writer/egress.dialer: tcp to 192.0.2.9 port 443", After: "there"},
	}
	if d := cmp.Diff(want, list); d != "" {
		t.Error(d)
	}
	if list, err := Differences(before, before); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// What is not attacked any more is no better for it, unless it was a guest that
// sleeps by now.
func TestWhatIsNotTriedAnyMoreIsWorseUnlessAGuestSleeps(t *testing.T) {
	verify, prove := fixture(t, "verify.json"), fixture(t, "prove.json")
	const row = `{"agent": "writer", "position": "gateway", "target": "reader", "attack": "file.other", "layer": "account", "verdict": "denied", "evidence": "EACCES"},`
	if !strings.Contains(verify, row) {
		t.Fatal("the fixture has another row")
	}
	without := strings.Replace(verify, row, "", 1)
	guest := func(s string) string { return strings.Replace(s, `"agents"`, `"guests": ["writer"], "agents"`, 1) }
	for name, tc := range map[string]struct {
		before, after string
		worse         bool
	}{
		"an attack on an agent is left out":       {verify, without, true},
		"one on a guest that goes on being tried": {guest(verify), guest(without), true},
		"a guest sleeps":                          {guest(verify), without, false},
	} {
		list, err := Differences(statement(t, tc.before, prove), statement(t, tc.after, prove))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(d Difference) bool { return d.What == "attack/writer/gateway/file.other" })
		if i < 0 || list[i].Worse != tc.worse {
			t.Errorf("%s: %+v", name, list)
		}
	}
}

func TestKeysSurviveTheirFiles(t *testing.T) {
	key, keys := newKey(t)
	secret, err := EncodePrivate(key)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParsePrivate(secret)
	if err != nil || !back.Equal(key) {
		t.Fatalf("%v", err)
	}
	var text []byte
	for _, pub := range keys {
		open, err := EncodePublic(pub)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, open...)
	}
	if _, err := ParsePublic(secret); err == nil {
		t.Error("a private key was taken for a public one")
	}
	if _, err := ParsePublic([]byte("no key")); err == nil {
		t.Error("text was taken for a key")
	}
	got, err := ParsePublic(text)
	if err != nil || !cmp.Equal(keys, got) {
		t.Errorf("%v, %v", got, err)
	}
}

func FuzzOpen(f *testing.F) {
	file, _, keys := signed(f)
	f.Add(file)
	f.Add([]byte(`{"payloadType":"` + PayloadType + `","payload":"e30=","signatures":[{"keyid":"","sig":""}]}`))
	f.Add([]byte(`{"a":{"b":[{"c":1,"C":2}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := Open(text, keys)
		if (o == nil) == (err == nil) {
			t.Fatalf("%v, %v", o, err)
		}
		// Whatever opens has a payload that the key signed, which is one only.
		if err == nil {
			var a, b envelope
			if json.Unmarshal(text, &a) != nil || json.Unmarshal(file, &b) != nil || a.Payload != b.Payload {
				t.Fatalf("another payload than the signed one was opened: %q", text)
			}
		}
	})
}

func FuzzParsePublic(f *testing.F) {
	_, keys := newKey(f)
	for _, pub := range keys {
		open, err := EncodePublic(pub)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(open)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := ParsePublic(text)
		if err == nil && len(keys) == 0 {
			t.Fatal("no key and no error")
		}
		for id, pub := range keys {
			if got, err := KeyID(pub); err != nil || got != id {
				t.Fatalf("%s is %s, %v", id, got, err)
			}
		}
	})
}
