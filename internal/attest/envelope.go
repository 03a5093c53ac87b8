package attest

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// PayloadType is what the envelope says that it holds.
const PayloadType = "application/vnd.in-toto+json"

// MaxFile bounds an envelope, in bytes. The evidence of a hundred agents is well
// below.
const MaxFile = 64 << 20

// Reasons to refuse a file; each is wrapped with what was found.
var (
	ErrFormat     = errors.New("it is not an evidence file")
	ErrUnknownKey = errors.New("it is signed by a key that is not known here")
	ErrSignature  = errors.New("its signature does not fit its content: it was changed, or never signed by this key")
)

// envelope is the DSSE form.
type envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     string      `json:"payload"` // base64
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	KeyID string `json:"keyid"`
	Sig   string `json:"sig"` // base64
}

// preAuthentication is what is signed: DSSE's PAE.
func preAuthentication(payloadType string, payload []byte) []byte {
	head := "DSSEv1 " + strconv.Itoa(len(payloadType)) + " " + payloadType + " " + strconv.Itoa(len(payload)) + " "
	return append([]byte(head), payload...)
}

// Sign makes the file of a statement.
func Sign(s *Statement, key ed25519.PrivateKey) ([]byte, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("attest: encode: %w", err)
	}
	pub, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("attest: no Ed25519 key")
	}
	id, err := KeyID(pub)
	if err != nil {
		return nil, err
	}
	file, err := json.Marshal(envelope{
		PayloadType: PayloadType,
		Payload:     base64.StdEncoding.EncodeToString(payload),
		Signatures:  []signature{{KeyID: id, Sig: base64.StdEncoding.EncodeToString(ed25519.Sign(key, preAuthentication(PayloadType, payload)))}},
	})
	if err != nil {
		return nil, fmt.Errorf("attest: encode: %w", err)
	}
	if len(file) > MaxFile {
		return nil, fmt.Errorf("attest: the evidence is %d bytes long, more than %d", len(file), MaxFile)
	}
	return append(file, '\n'), nil
}

// Opened is a file whose signature holds.
type Opened struct {
	KeyID     string
	Statement *Statement
}

// Open checks a file against the keys that are trusted, by [KeyID], and gives its
// statement. The signature must be by one of them.
func Open(file []byte, trusted Keys) (*Opened, error) {
	e, payload, err := parse(file)
	if err != nil {
		return nil, err
	}
	id := e.Signatures[0].KeyID
	pub, ok := trusted[id]
	if !ok {
		return nil, fmt.Errorf("%w: %.80q", ErrUnknownKey, id)
	}
	sig, err := canonical(e.Signatures[0].Sig)
	if err != nil || len(sig) != ed25519.SignatureSize {
		return nil, fmt.Errorf("%w: the signature is not %d bytes of base64", ErrFormat, ed25519.SignatureSize)
	}
	if !ed25519.Verify(pub, preAuthentication(e.PayloadType, payload), sig) {
		return nil, ErrSignature
	}
	s, err := parseStatement(payload)
	if err != nil {
		return nil, err
	}
	return &Opened{KeyID: id, Statement: s}, nil
}

// parse reads an envelope, strictly.
func parse(file []byte) (*envelope, []byte, error) {
	if len(file) > MaxFile {
		return nil, nil, fmt.Errorf("%w: it is longer than %d bytes", ErrFormat, MaxFile)
	}
	var e envelope
	if err := decode(file, &e, true); err != nil {
		return nil, nil, fmt.Errorf("%w: envelope: %w", ErrFormat, err)
	}
	if e.PayloadType != PayloadType {
		return nil, nil, fmt.Errorf("%w: its payloadType is %.80q, not %q", ErrFormat, e.PayloadType, PayloadType)
	}
	if len(e.Signatures) != 1 {
		return nil, nil, fmt.Errorf("%w: it has %d signatures, not one", ErrFormat, len(e.Signatures))
	}
	payload, err := canonical(e.Payload)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: payload: %w", ErrFormat, err)
	}
	return &e, payload, nil
}

// canonical decodes base64 that has one form only: no line breaks, no stray bits.
func canonical(text string) ([]byte, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, err
	}
	if base64.StdEncoding.EncodeToString(raw) != text {
		return nil, errors.New("base64 in another form than the canonical one")
	}
	return raw, nil
}
