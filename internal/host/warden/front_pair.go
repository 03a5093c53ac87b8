package warden

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/team"
)

// frontPair reads the certificate and the key that front serves with. A pair
// that front could not serve with is refused before anything is changed: front
// is one process for all teams, and would be gone for each of them.
func frontPair(f *team.Front) (cert, key []byte, err error) {
	if cert, err = tree.ReadFile(f.Cert.Path, maxTLSFile, false); err != nil {
		return nil, nil, fmt.Errorf("%s: front: %w", f.Cert.Position, err)
	}
	if key, err = tree.ReadFile(f.Key.Path, maxTLSFile, true); err != nil {
		return nil, nil, fmt.Errorf("%s: front: %w", f.Key.Position, err)
	}
	if err := samePair(cert, key, f.Cert.Path, f.Key.Path); err != nil {
		return nil, nil, fmt.Errorf("%s: front: %w", f.Key.Position, err)
	}
	return cert, key, nil
}

// samePair says what crypto/tls would have against the two texts, in words that
// name the files.
func samePair(cert, key []byte, certFile, keyFile string) error {
	leaf, err := firstCertificate(cert)
	if err != nil {
		return fmt.Errorf("%s %w: write the certificate in PEM, and after it those that vouch for it", certFile, err)
	}
	private, err := privateKey(key)
	if err != nil {
		return fmt.Errorf("%s %w: write the key of %s in PEM, without a password", keyFile, err, certFile)
	}
	public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(private.Public()) {
		return fmt.Errorf("%s is not the key of the certificate in %s: name the one that it was made with", keyFile, certFile)
	}
	return nil
}

// firstCertificate is the one that a server shows for itself; the others must
// be certificates as well.
func firstCertificate(text []byte) (first *x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a certificate that cannot be read (%w)", err)
		}
		if first == nil {
			first = c
		}
	}
	if first == nil {
		return nil, errors.New("holds no certificate")
	}
	return first, nil
}

// privateKey is the first one, in any of the forms that crypto/tls takes.
func privateKey(text []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "PRIVATE KEY" && !strings.HasSuffix(block.Type, " PRIVATE KEY") {
			continue
		}
		if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
			return key, nil
		}
		if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
			return key, nil
		}
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if signer, ok := key.(crypto.Signer); ok {
				return signer, nil
			}
		}
		return nil, errors.New("holds a key that cannot be read")
	}
	return nil, errors.New("holds no private key")
}
