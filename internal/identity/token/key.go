package token

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Alg is an algorithm that tokens are signed with (RFC 7518, RFC 8037).
type Alg string

// The algorithms.
const (
	EdDSA Alg = "EdDSA"
	RS256 Alg = "RS256"
	HS256 Alg = "HS256"
)

// Sizes of keys.
const (
	rsaBits    = 3072
	minRSABits = 2048
	secretSize = 32
	maxKid     = 64
)

// Key is what tokens of one key id are checked with.
type Key struct {
	ID  string `json:"kid"`
	Alg Alg    `json:"alg"`
	// Public is the public key of EdDSA and RS256 (PKIX, DER).
	Public []byte `json:"public,omitempty"`
	// Secret is that of HS256. A gateway has none: it takes front's word.
	Secret []byte `json:"secret,omitempty"`
	// Team and Agent are the only ones whose tokens HS256 signs.
	Team  string `json:"team,omitempty"`
	Agent string `json:"agent,omitempty"`
	// Until is when the overlap after a rotation ends, in Unix seconds; 0: the
	// key is in use.
	Until int64 `json:"until,omitempty"`
}

// Signer is a key that tokens are made with.
type Signer struct {
	Key
	private any // ed25519.PrivateKey, *rsa.PrivateKey or []byte
}

// NewSigner makes a key. HS256 is bound to one agent of one team; the others
// are to nobody.
func NewSigner(alg Alg, team, agent string) (*Signer, error) {
	s := &Signer{Key: Key{ID: "k" + rand.Text(), Alg: alg}}
	switch alg {
	case EdDSA:
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		return s, s.hold(private)
	case RS256:
		private, err := rsa.GenerateKey(rand.Reader, rsaBits)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		return s, s.hold(private)
	case HS256:
		if team == "" || agent == "" {
			return nil, errors.New("token: an HS256 key belongs to one agent: whoever can check its tokens can make them")
		}
		secret := make([]byte, secretSize)
		_, _ = rand.Read(secret) // never fails
		s.Team, s.Agent = team, agent
		return s, s.hold(secret)
	}
	return nil, fmt.Errorf("token: there is no algorithm %.20q; use EdDSA, RS256 or HS256", alg)
}

func (s *Signer) hold(private any) (err error) {
	s.private = private
	switch p := private.(type) {
	case ed25519.PrivateKey:
		s.Public, err = x509.MarshalPKIXPublicKey(p.Public())
	case *rsa.PrivateKey:
		s.Public, err = x509.MarshalPKIXPublicKey(p.Public())
	case []byte:
		s.Secret = p
	}
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	return nil
}

// Private gives the key as it is kept on disk: PKCS #8 in DER, or the secret.
func (s *Signer) Private() ([]byte, error) {
	if b, ok := s.private.([]byte); ok {
		return b, nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(s.private)
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	return der, nil
}

// LoadSigner makes the signer of k from what Private gave.
func LoadSigner(k Key, private []byte) (*Signer, error) {
	s := &Signer{Key: k}
	if k.Alg == HS256 {
		if len(private) != secretSize || k.Team == "" || k.Agent == "" {
			return nil, fmt.Errorf("token: key %.64q is no HS256 key of an agent", k.ID)
		}
		return s, s.hold(private)
	}
	p, err := x509.ParsePKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("token: key %.64q: %w", k.ID, err)
	}
	if err := s.hold(p); err != nil {
		return nil, err
	}
	_, err = s.material()
	return s, err
}

// material is what the signature is checked with, of the type that the key's
// algorithm wants and no other.
func (k *Key) material() (any, error) {
	if k.ID == "" || len(k.ID) > maxKid {
		return nil, fmt.Errorf("token: a key's id has %d bytes, not 1 to %d", len(k.ID), maxKid)
	}
	if k.Alg == HS256 {
		if len(k.Secret) < secretSize || k.Team == "" || k.Agent == "" {
			return nil, fmt.Errorf("token: key %.64q: an HS256 key has a secret of %d bytes and one agent", k.ID, secretSize)
		}
		return k.Secret, nil
	}
	p, err := x509.ParsePKIXPublicKey(k.Public)
	if err != nil {
		return nil, fmt.Errorf("token: key %.64q: %w", k.ID, err)
	}
	return p, k.fits(p)
}

func (k *Key) fits(p crypto.PublicKey) error {
	switch p := p.(type) {
	case ed25519.PublicKey:
		if k.Alg == EdDSA {
			return nil
		}
	case *rsa.PublicKey:
		if k.Alg == RS256 && p.N.BitLen() >= minRSABits {
			return nil
		}
	}
	return fmt.Errorf("token: key %.64q is no key for %.20q, or too short for it", k.ID, k.Alg)
}

// over says whether the key's overlap has ended.
func (k *Key) over(now time.Time) bool { return k.Until != 0 && now.Unix() >= k.Until }
