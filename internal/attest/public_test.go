package attest_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	testresult "github.com/in-toto/attestation/go/predicates/test_result/v0"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"google.golang.org/protobuf/encoding/protojson"

	"bulkhead/internal/attest"
)

// verifier is the whole of what a foreign checker brings along: the key.
type verifier struct{ pub ed25519.PublicKey }

func (v verifier) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(v.pub, data, sig) {
		return os.ErrInvalid
	}
	return nil
}
func (v verifier) KeyID() (string, error)   { return attest.KeyID(v.pub) }
func (v verifier) Public() crypto.PublicKey { return v.pub }

// The file is checked by the libraries of those who made the formats.
func TestPublicToolsCheckTheFile(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) json.RawMessage {
		raw, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	digest := map[string]string{"sha256": strings.Repeat("cd", 32)}
	s, err := attest.New([]attest.Resource{{Name: "manifest", Digest: digest}}, []attest.Resource{{Name: "program bulkhead-warden", Digest: digest}},
		attest.Evidence{Team: "pair", Time: time.Unix(0, 0).UTC(), Verify: read("verify.json"), Prove: read("prove.json")})
	if err != nil {
		t.Fatal(err)
	}
	file, err := attest.Sign(s, key)
	if err != nil {
		t.Fatal(err)
	}
	ours := verifier{pub}
	envelopes, err := dsse.NewEnvelopeVerifier(ours)
	if err != nil {
		t.Fatal(err)
	}
	var e dsse.Envelope
	if err := json.Unmarshal(file, &e); err != nil {
		t.Fatal(err)
	}
	accepted, err := envelopes.Verify(t.Context(), &e)
	id, _ := ours.KeyID()
	if err != nil || len(accepted) != 1 || accepted[0].KeyID != id {
		t.Fatalf("go-securesystemslib: %v, %v", accepted, err)
	}
	payload, err := e.DecodeB64Payload()
	if err != nil {
		t.Fatal(err)
	}

	var st intoto.Statement
	if err := (protojson.UnmarshalOptions{}).Unmarshal(payload, &st); err != nil {
		t.Fatalf("in-toto: %v", err)
	}
	if err := st.Validate(); err != nil {
		t.Errorf("in-toto: %v", err)
	}
	predicate, err := protojson.Marshal(st.GetPredicate())
	if err != nil {
		t.Fatal(err)
	}
	var result testresult.TestResult
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(predicate, &result); err != nil {
		t.Fatalf("in-toto: test-result: %v", err)
	}
	if result.GetResult() != attest.Failed || len(result.GetFailedTests()) != 3 || len(result.GetConfiguration()) != 1 {
		t.Errorf("in-toto reads %v", &result)
	}

	// And what they sign is ours to read, while what they refuse is refused here.
	signer, err := dsse.NewEnvelopeSigner(foreign{ours, key})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := signer.SignPayload(t.Context(), attest.PayloadType, payload)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := attest.Open(raw, attest.Keys{id: pub}); err != nil {
		t.Errorf("a file that go-securesystemslib signed: %v", err)
	}
	e.Payload = theirs.Payload[:len(theirs.Payload)-4] + "fX0="
	changed, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envelopes.Verify(t.Context(), &e); err == nil {
		t.Error("go-securesystemslib takes a changed payload")
	}
	if _, err := attest.Open(changed, attest.Keys{id: pub}); err == nil || bytes.Equal(changed, raw) {
		t.Error("a changed payload was opened")
	}
}

type foreign struct {
	verifier
	key ed25519.PrivateKey
}

func (f foreign) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(f.key, data), nil
}
