package attest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
)

// Keys are public keys by their id.
type Keys map[string]ed25519.PublicKey

// KeyID is what an envelope calls a key: the SHA-256 of its SubjectPublicKeyInfo
// (RFC 8410), in hexadecimal. `openssl pkey -pubin -outform DER | sha256sum` gives
// the same.
func KeyID(pub ed25519.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", fmt.Errorf("attest: key: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// PEM types.
const (
	publicType  = "PUBLIC KEY"
	privateType = "PRIVATE KEY" // PKCS #8
)

// EncodePublic writes a key as PEM.
func EncodePublic(pub ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("attest: key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der}), nil
}

// EncodePrivate writes a key as PEM.
func EncodePrivate(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("attest: key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateType, Bytes: der}), nil
}

// ParsePrivate reads what [EncodePrivate] wrote.
func ParsePrivate(text []byte) (ed25519.PrivateKey, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != privateType || len(rest) != 0 {
		return nil, errors.New("attest: it is not one private key in PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("attest: key: %w", err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("attest: it is not an Ed25519 key")
	}
	return key, nil
}

// maxKeys bounds a file of keys.
const maxKeys = 1000

// ParsePublic reads one or more public keys in PEM, one behind the other.
func ParsePublic(text []byte) (Keys, error) {
	keys := Keys{}
	for len(text) > 0 {
		block, rest := pem.Decode(text)
		if block == nil {
			if len(keys) == 0 {
				return nil, errors.New("attest: there is no public key in PEM")
			}
			break
		}
		if block.Type != publicType {
			return nil, fmt.Errorf("attest: a PEM block is %.40q, not %q", block.Type, publicType)
		}
		k, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("attest: key: %w", err)
		}
		pub, ok := k.(ed25519.PublicKey)
		if !ok {
			return nil, errors.New("attest: it is not an Ed25519 key")
		}
		id, err := KeyID(pub)
		if err != nil {
			return nil, err
		}
		if keys[id] = pub; len(keys) > maxKeys {
			return nil, fmt.Errorf("attest: more than %d keys", maxKeys)
		}
		text = rest
	}
	if len(keys) == 0 {
		return nil, errors.New("attest: there is no public key in PEM")
	}
	return keys, nil
}
