package system

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// certificate makes a certificate for 127.0.0.1 that vouches for itself.
func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "front"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// speaksTLS gives the team's front a certificate, with every fault first. plain
// is the manifest without one, which is in force again at the end; token lets
// in to an agent.
func speaksTLS(t *testing.T, c stage.CLI, plain, token string) {
	t.Helper()
	const dir = "/etc/bulkhead-front"
	cert, key := certificate(t)
	_, other := certificate(t)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]struct {
		text []byte
		mode os.FileMode
	}{
		"front.crt": {cert, 0o644}, "front.key": {key, 0o600}, "open.key": {key, 0o644}, "other.key": {other, 0o600}, "words.key": {[]byte("not a key\n"), 0o600}, "words.crt": {[]byte("none\n"), 0o644},
	} {
		if err := os.WriteFile(dir+"/"+name, f.text, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	with := func(files string) {
		write(t, c.Dir, strings.Replace(plain, `front: {listen: "127.0.0.1:8484"`, `front: {listen: "127.0.0.1:8484"`+files, 1))
	}
	for name, x := range map[string]struct{ files, says string }{
		"a missing key":                {", certFile: " + dir + "/front.crt, keyFile: " + dir + "/none.key", dir + "/none.key"},
		"a key that all may read":      {", certFile: " + dir + "/front.crt, keyFile: " + dir + "/open.key", "readable by root alone (chown root " + dir + "/open.key && chmod 600 " + dir + "/open.key)"},
		"the key of another":           {", certFile: " + dir + "/front.crt, keyFile: " + dir + "/other.key", dir + "/other.key is not the key of the certificate in " + dir + "/front.crt"},
		"a file that is no key":        {", certFile: " + dir + "/front.crt, keyFile: " + dir + "/words.key", dir + "/words.key holds no private key"},
		"a file without a certificate": {", certFile: " + dir + "/words.crt, keyFile: " + dir + "/front.key", dir + "/words.crt holds no certificate"},
		"a certificate without a key":  {", certFile: " + dir + "/front.crt", "give both certFile and keyFile"},
	} {
		with(x.files)
		r := c.Try(t, "up")
		if r.Exit == wire.ExitOK || !strings.Contains(r.Stderr, x.says) {
			t.Errorf("%s: want %q: %s", name, x.says, r)
		}
		if status, body := asks(t, "/health", ""); status != http.StatusOK || !strings.Contains(body, `"timestamp"`) || !strings.Contains(body, `"version":"1"`) {
			t.Errorf("after %s front answers %d %s", name, status, body)
		}
	}
	with(", certFile: " + dir + "/front.crt, keyFile: " + dir + "/front.key")
	c.Run(t, "up")
	trust := x509.NewCertPool()
	if !trust.AppendCertsFromPEM(cert) {
		t.Fatal("no certificate")
	}
	ask := func(scheme, token string, cfg *tls.Config) (int, string) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://127.0.0.1:8484/v1/tools", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+token)
		client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
		r, err := client.Do(q)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = r.Body.Close() }()
		body, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(body)
	}
	stage.Until(t, "a client that trusts the certificate gets in", func() bool {
		status, _ := ask("https", token, &tls.Config{RootCAs: trust})
		return status == http.StatusOK
	})
	if status, body := ask("https", "x.y.z", &tls.Config{RootCAs: trust}); status != http.StatusUnauthorized {
		t.Errorf("TLS alone lets in: %d %s", status, body)
	}
	if status, body := ask("http", token, nil); status != http.StatusBadRequest || !strings.Contains(body, "HTTPS") {
		t.Errorf("plain HTTP: %d %s", status, body)
	}
	if status, body := ask("https", token, &tls.Config{}); status != 0 || !strings.Contains(body, "unknown authority") {
		t.Errorf("a client that does not trust it: %d %s", status, body)
	}
	if status, body := ask("https", token, &tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); status != 0 { // #nosec G402 -- to be refused
		t.Errorf("TLS 1.1: %d %s", status, body)
	}
	if out := stage.Sh(t, "grep -rl 'BEGIN PRIVATE KEY' /var/lib/bulkhead /run/bulkhead 2>/dev/null || true"); out != "" {
		t.Errorf("the key lies in %s", out)
	}
	write(t, c.Dir, plain)
	c.Run(t, "up")
	stage.Until(t, "plain HTTP is answered again", func() bool { status, _ := asks(t, "/health", ""); return status == http.StatusOK })
}
