package warden

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
)

// pair makes a certificate for a key.
func pair(t testing.TB, private crypto.Signer) (cert, key []byte) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func pairs(t testing.TB) (certs, keys [][]byte) {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, private := range []crypto.Signer{ed, ec, rs} {
		cert, key := pair(t, private)
		certs, keys = append(certs, cert), append(keys, key)
	}
	// The older forms, that openssl still writes.
	raw, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	certs = append(certs, certs[1], certs[2])
	keys = append(keys, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rs)}))
	return certs, keys
}

func TestAPairIsTakenAsCryptoTLSTakesIt(t *testing.T) {
	certs, keys := pairs(t)
	for c, cert := range certs {
		for k, key := range keys {
			err := samePair(cert, key, "front.crt", "front.key")
			if _, tlsErr := tls.X509KeyPair(cert, key); (err == nil) != (tlsErr == nil) {
				t.Errorf("certificate %d, key %d: here %v, crypto/tls %v", c, k, err, tlsErr)
			}
			if err != nil && !strings.Contains(err.Error(), "front.key is not the key of the certificate in front.crt") {
				t.Error(err)
			}
		}
	}
	for name, x := range map[string]struct {
		cert, key []byte
		says      string
	}{
		"no certificate":             {keys[0], keys[0], "front.crt holds no certificate"},
		"no key":                     {certs[0], certs[0], "front.key holds no private key"},
		"nothing":                    {nil, nil, "front.crt holds no certificate"},
		"a broken key":               {certs[0], pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), "front.key holds a key that cannot be read"},
		"a broken certificate":       {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), keys[0], "front.crt holds a certificate that cannot be read"},
		"one that vouches is no use": {append(certs[0][:len(certs[0]):len(certs[0])], pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})...), keys[0], "cannot be read"},
	} {
		if err := samePair(x.cert, x.key, "front.crt", "front.key"); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPair: with what is taken here, front can serve.
func FuzzPair(f *testing.F) {
	certs, keys := pairs(f)
	for i := range certs {
		f.Add(certs[i], keys[i])
	}
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		if samePair(cert, key, "front.crt", "front.key") != nil {
			return
		}
		if _, err := tls.X509KeyPair(cert, key); err != nil {
			t.Error(err)
		}
	})
}
