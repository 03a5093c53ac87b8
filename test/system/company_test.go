package system

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/evidence"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// proxyAt is where the company's proxy listens, and the one thing of the
// company that this host can reach.
const proxyAt = "10.77.0.1:3128"

const (
	proxyUser     = "jo"
	proxyPassword = "right:hunter2"
)

// company is a manifest behind it. No name in it but listed.example can be
// looked up on this host; that one has an address and goes without the proxy.
const company = `apiVersion: bulkhead/v1
team: pair
upstreamProxy:
  url: http://` + proxyAt + `
  credentialsFile: /etc/company/proxy.cred
caFiles: [/etc/company/ca.pem]
agents:
  writer:
    rootfs: /srv/rootfs
    mode: session
    command: [/bin/sh]
    limits: {memory: 256Mi, cpu: 1, pids: 64}
    egress: ['web.example:8080', 'web.example:9999', 'secure.example:8443', 'public.example:8444', 'gone.example:8080', 'listed.example:8080']
    hosts: {listed.example: 203.0.113.10}
`

// names are what the proxy knows and this host does not.
var names = map[string]string{
	"web.example": "203.0.113.11", "secure.example": "203.0.113.11", "public.example": "203.0.113.11", "later.example": "203.0.113.11",
}

// allowed are the ports that the company's proxy connects to.
var allowed = []string{"8080", "8443", "8444"}

func buildFetch(t *testing.T) string {
	t.Helper()
	bin := stage.Build(t)
	if throwaway.Inside() {
		return bin
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin+"/", "./fetch")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// startProxy starts a proxy of the test's own on proxyAt, and gives what it was
// asked for so far.
func startProxy(t *testing.T) func() string {
	t.Helper()
	ln, err := net.Listen("tcp", proxyAt)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked strings.Builder
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(proxyUser+":"+proxyPassword))
	go func() { // ends with the host
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				mu.Lock()
				fmt.Fprintln(&asked, r.Method, r.RequestURI)
				mu.Unlock()
				host, port, _ := net.SplitHostPort(r.RequestURI)
				switch {
				case r.Header.Get("Proxy-Authorization") != want:
					_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
				case r.Method != http.MethodConnect || !slices.Contains(allowed, port):
					_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\n\r\n")
				case names[host] == "":
					_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\n\r\n")
				default:
					forward(c, net.JoinHostPort(names[host], port))
				}
			}()
		}
	}()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return asked.String()
	}
}

func forward(c net.Conn, to string) {
	up, err := net.Dial("tcp", to)
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\n\r\n")
		return
	}
	_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
	_, _ = io.Copy(c, up)
}

// startSquid does the same with Squid.
func startSquid(t *testing.T) func() string {
	t.Helper()
	var hosts strings.Builder
	for name, addr := range names {
		fmt.Fprintln(&hosts, addr, name)
	}
	conf := `http_port ` + proxyAt + `
hosts_file /srv/squid/hosts
dns_nameservers 127.0.0.1
dns_timeout 1 second
dns_retransmit_interval 1 second
auth_param basic program /usr/lib/squid/basic_ncsa_auth /srv/squid/passwd
acl known proxy_auth REQUIRED
acl ports port ` + strings.Join(allowed, " ") + `
http_access deny !known
http_access deny !ports
http_access allow known
cache deny all
pinger_enable off
pid_filename /srv/squid/pid
access_log stdio:/srv/squid/access.log
cache_log /srv/squid/cache.log
coredump_dir /srv/squid
shutdown_lifetime 0 seconds
max_filedescriptors 1024
`
	stage.Sh(t, "mkdir -p /srv/squid; chmod 755 /srv/squid")
	for name, content := range map[string]string{
		"hosts": hosts.String(), "squid.conf": conf,
		"passwd": proxyUser + ":" + strings.TrimSpace(stage.Sh(t, "openssl passwd -apr1 '"+proxyPassword+"'")) + "\n",
	} {
		if err := os.WriteFile(filepath.Join("/srv/squid", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stage.Sh(t, "chown -R proxy /srv/squid")
	squid := exec.CommandContext(t.Context(), "squid", "-N", "-f", "/srv/squid/squid.conf")
	if err := squid.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = squid.Process.Kill(); _ = squid.Wait() })
	log := func() string {
		b, _ := os.ReadFile("/srv/squid/access.log")
		return string(b)
	}
	stage.Until(t, "Squid listens", func() bool {
		c, err := net.Dial("tcp", proxyAt)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return log
}

// authority is a certificate authority with one server at addr.
func authority(t *testing.T, cn, server, addr string, says http.Handler) (ca []byte, leaf []byte) {
	t.Helper()
	issue := func(c, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = key
		}
		c.NotBefore, c.NotAfter, c.BasicConstraintsValid = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour), true
		der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	rootDER, rootKey := issue(root, root, nil)
	leafDER, key := issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{server}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, root, rootKey)
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(says)
	_ = s.Listener.Close()
	s.Listener = ln
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leafDER}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	block := func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
	return block(rootDER), block(leafDER)
}

// saying answers everything with the text.
func saying(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

func companyHost(t *testing.T, bin string) (c stage.CLI, leaf []byte) {
	t.Helper()
	c = host(t, bin)
	write(t, c.Dir, company)
	ca, leaf := authority(t, "Company", "secure.example", "203.0.113.11:8443", saying("hello behind the company's authority\n"))
	public, _ := authority(t, "Public", "public.example", "203.0.113.11:8444", saying("hello behind the image's authority\n"))
	stage.Sh(t, "ip address add 10.77.0.1/32 dev lo; mkdir -p -m 755 /etc/company /srv/rootfs/etc/ssl/certs; cp "+bin+"/fetch /srv/rootfs/bin/fetch")
	for path, content := range map[string][]byte{
		"/etc/company/ca.pem": ca, "/srv/rootfs/etc/ssl/certs/ca-certificates.crt": public, "/etc/company/leaf.pem": leaf,
	} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return c, leaf
}

func credentials(t *testing.T, password string) {
	t.Helper()
	if err := os.WriteFile("/etc/company/proxy.cred", []byte(proxyUser+":"+password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestATeamWorksBehindACompanysProxy(t *testing.T) {
	for name, c := range map[string]struct {
		proxy func(*testing.T) func() string
		kind  engine.Kind
	}{"squid": {startSquid, engine.Cell}, "plain": {startProxy, engine.Cell}, "podman": {startProxy, engine.Podman}} {
		t.Run(name, func(t *testing.T) {
			if name == "squid" {
				if _, err := exec.LookPath("squid"); err != nil {
					t.Skip("squid is not installed")
				}
			}
			if c.kind == engine.Podman {
				needPodman(t)
			}
			bin := buildFetch(t)
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) { behindProxy(t, bin, c.kind, c.proxy) })
		})
	}
}

func behindProxy(t *testing.T, bin string, kind engine.Kind, proxy func(*testing.T) func() string) {
	c, _ := companyHost(t, bin)
	write(t, c.Dir, strings.Replace(company, "agents:\n", "defaults: {engine: "+string(kind)+"}\nagents:\n", 1))
	asked := proxy(t)
	credentials(t, "wrong")
	before := stage.Picture(t)
	c.Run(t, "up")
	fetch := func(url string) stage.Result { return c.Try(t, "exec", "writer", "--", "fetch", url) }
	gives := func(t *testing.T, url, want string) {
		t.Helper()
		if r := fetch(url); r.Exit != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("%s: %s\n%s", url, r, c.Run(t, "denials", "writer"))
		}
	}
	// What the client itself is told: the reason, whole.
	refused := func(t *testing.T, url string, code deny.Code, says ...string) {
		t.Helper()
		r := fetch(url)
		for _, s := range append(says, string(code)) {
			if r.Exit == 0 || !strings.Contains(r.Stderr, s) {
				t.Errorf("%s: want %q: %s", url, s, r)
			}
		}
	}
	t.Run("wrong credentials are the proxy's refusal, and name the file", func(t *testing.T) {
		refused(t, "http://web.example:8080/", deny.UpstreamRefused, "407", "credentialsFile")
	})
	credentials(t, proxyPassword)
	t.Run("right ones serve without a restart", func(t *testing.T) { gives(t, "http://web.example:8080/", "hello from outside") })
	t.Run("TLS, checked against the company's authority", func(t *testing.T) {
		gives(t, "https://secure.example:8443/", "hello behind the company's authority")
	})
	t.Run("and against the image's own", func(t *testing.T) {
		gives(t, "https://public.example:8444/", "hello behind the image's authority")
	})
	t.Run("a client that knows no proxy", func(t *testing.T) {
		r := c.Try(t, "exec", "writer", "--", "env", "-u", "http_proxy", "-u", "HTTP_PROXY", "wget", "-q", "-O", "-", "http://web.example:8080/")
		if !strings.Contains(r.Stdout, "hello from outside") {
			t.Error(r)
		}
	})
	t.Run("a name with an address of its own goes without the proxy", func(t *testing.T) {
		gives(t, "http://listed.example:8080/", "hello from outside")
		if strings.Contains(asked(), "listed.example") {
			t.Errorf("the proxy was asked:\n%s", asked())
		}
	})
	t.Run("a name that is not listed is refused before the proxy", func(t *testing.T) {
		refused(t, "http://later.example:8080/", deny.NotListed)
		if strings.Contains(asked(), "later.example") {
			t.Errorf("the proxy was asked:\n%s", asked())
		}
	})
	t.Run("a port that the proxy refuses", func(t *testing.T) {
		refused(t, "http://web.example:9999/", deny.UpstreamRefused, "403", "allow CONNECT to web.example:9999")
	})
	t.Run("a name that the proxy does not know", func(t *testing.T) {
		refused(t, "http://gone.example:8080/", deny.UpstreamRefused, "50", "check that the service runs")
	})
	t.Run("a temporary destination, until it is revoked", func(t *testing.T) {
		c.Run(t, "allow", "writer", "later.example:8080", "--for", "1h")
		gives(t, "http://later.example:8080/", "hello from outside")
		c.Run(t, "revoke", "writer", "later.example:8080")
		refused(t, "http://later.example:8080/", deny.NotListed)
	})
	t.Run("the operator is told who keeps what", func(t *testing.T) {
		if out := c.Run(t, "why", "writer", "web.example:8080"); !strings.Contains(out, "through") || !strings.Contains(out, "http://"+proxyAt) || !strings.Contains(out, "10.77.0.1") {
			t.Error(out)
		}
		for _, l := range c.Agent(t, "writer").Layers {
			if l.Layer == "egress" && (!l.InForce || !strings.Contains(l.Witness, "http://"+proxyAt)) {
				t.Errorf("%+v", l)
			}
		}
	})
	t.Run("nobody but the dialer reaches the proxy", func(t *testing.T) {
		before := asked()
		if r := c.Try(t, "exec", "writer", "--", "nc", "-w", "2", "10.77.0.1", "3128"); r.Exit == 0 {
			t.Errorf("from the runtime: %s", r)
		}
		r, report := verify(t, c, "--no-controls")
		if r.Exit != 0 || !report.OK() {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "http://"+proxyAt) {
			t.Errorf("notes %q", report.Notes)
		}
		row := func(attack, at string) bool {
			return slices.ContainsFunc(report.Rows, func(x evidence.Row) bool {
				return x.Attack == attack && x.Verdict == evidence.Denied && strings.Contains(x.Evidence, at)
			})
		}
		if !row("net.unlisted", proxyAt) || !row("dialer.aim", string(deny.RelayedOnly)) {
			t.Errorf("the proxy itself was not attacked:\n%s", report.Text())
		}
		// Squid writes down bare connections, too.
		for line := range strings.Lines(strings.TrimPrefix(asked(), before)) {
			if !strings.Contains(line, "CONNECT web.example:8080") {
				t.Errorf("an attack reached the proxy: %s", line)
			}
		}
	})
	t.Run("credentials are in no environment, argument or file of the agent's", func(t *testing.T) {
		secret := base64.StdEncoding.EncodeToString([]byte(proxyUser + ":" + proxyPassword))
		out := stage.Sh(t, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null || true; cat /run/bulkhead/teams/pair/writer/conf/* /run/bulkhead/teams/pair/writer/*.json 2>/dev/null || true; cat /var/lib/bulkhead/teams/pair/agents/writer/log/* 2>/dev/null || true")
		if strings.Contains(out, secret) || strings.Contains(out, proxyPassword) {
			t.Error("the password is shown")
		}
	})
	c.Run(t, "down", "--purge")
	stage.Ended(t)
	for _, d := range stage.Differ(before, stage.Picture(t)) {
		if !strings.Contains(d, "squid") { // its helpers come and go
			t.Error(d)
		}
	}
}

func TestACompanysFilesAreJudgedWithTheirPlace(t *testing.T) {
	bin := buildFetch(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c, _ := companyHost(t, bin)
		credentials(t, proxyPassword)
		ca, err := os.ReadFile("/etc/company/ca.pem")
		if err != nil {
			t.Fatal(err)
		}
		for name, x := range map[string]struct{ spoil, want string }{
			"credentials that others may read":  {"chmod 644 /etc/company/proxy.cred", "bulkhead.yaml:5:20: upstreamProxy.credentialsFile:"},
			"credentials of somebody else":      {"chown 1 /etc/company/proxy.cred", "bulkhead.yaml:5:20: upstreamProxy.credentialsFile:"},
			"credentials that are not there":    {"rm /etc/company/proxy.cred", "bulkhead.yaml:5:20: upstreamProxy.credentialsFile:"},
			"credentials behind a link":         {"mv /etc/company/proxy.cred /etc/company/x; ln -s x /etc/company/proxy.cred", "bulkhead.yaml:5:20: upstreamProxy.credentialsFile:"},
			"credentials in a folder for all":   {"chmod 777 /etc/company", "bulkhead.yaml:5:20: upstreamProxy.credentialsFile:"},
			"credentials without a password":    {"echo jo > /etc/company/proxy.cred", "user:password"},
			"a server's certificate":            {"cp /etc/company/leaf.pem /etc/company/ca.pem", "bulkhead.yaml:6:11: caFiles[0]:"},
			"an authority that others may swap": {"chmod 666 /etc/company/ca.pem", "bulkhead.yaml:6:11: caFiles[0]:"},
			"no certificate":                    {"echo x > /etc/company/ca.pem", "no PEM certificate"},
			"a pipe":                            {"rm /etc/company/ca.pem; mkfifo /etc/company/ca.pem", "no regular file"},
		} {
			t.Run(name, func(t *testing.T) {
				stage.Sh(t, x.spoil)
				if r := c.Try(t, "up"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, x.want) || strings.Contains(r.String(), "hunter2") {
					t.Errorf("want %q: %s", x.want, r)
				}
				stage.Sh(t, "chmod 755 /etc/company; rm -f /etc/company/proxy.cred /etc/company/ca.pem")
				credentials(t, proxyPassword)
				if err := os.WriteFile("/etc/company/ca.pem", ca, 0o644); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}
