package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

func certificate(t testing.TB, authority bool) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Company"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0),
		IsCA: authority, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestOnlyCertificatesOfAuthoritiesAreTaken(t *testing.T) {
	ca, leaf := certificate(t, true), certificate(t, false)
	key := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("secret")})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no")})
	for name, c := range map[string]struct {
		raw  []byte
		want string // of the fault; empty: it is taken
	}{
		"one":                  {ca, ""},
		"two, with words":      {[]byte("Company root\n" + string(ca) + "# and\n" + string(ca)), ""},
		"nothing":              {nil, "no PEM certificate"},
		"DER":                  {[]byte{0x30, 0x82, 1, 2}, "no PEM certificate"},
		"a server's":           {leaf, "not an authority's"},
		"an authority and one": {append(bytes.Clone(ca), leaf...), "certificate 2"},
		"with its key":         {append(bytes.Clone(ca), key...), "private key"},
		"a broken one":         {broken, "cannot be read"},
		"half of a second":     {append(bytes.Clone(ca), ca[:len(ca)/2]...), "not whole"},
	} {
		got, err := Authorities(c.raw)
		switch {
		case c.want == "" && (err != nil || !bytes.HasPrefix(got, []byte("-----BEGIN CERTIFICATE-----\n"))):
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: the key is shown", name)
		}
	}
}

func FuzzAuthorities(f *testing.F) {
	ca := certificate(f, true)
	f.Add(ca)
	f.Add(append(bytes.Clone(ca), "-----BEGIN X-----"...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, err := Authorities(raw)
		if err == nil {
			again, err := Authorities(out)
			if err != nil || !bytes.Equal(again, out) {
				t.Fatalf("what was given is not what is taken: %v", err)
			}
			if !bytes.Equal(certificates(raw), out) {
				t.Fatal("the two readers differ")
			}
		}
		// Of a stranger's list nothing but blocks of certificates is passed on.
		list := certificates(raw)
		for b, rest := pem.Decode(list); b != nil; b, rest = pem.Decode(rest) {
			if b.Type != blockType || len(b.Headers) > 0 {
				t.Fatalf("%+v", b)
			}
		}
	})
}
