package net_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/big"
	stdnet "net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/dialer"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/pins"
	"bulkhead/internal/primitive/net"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// kernel stands for the kernel's sets; test/system has the real ones.
type kernel struct{}

func (kernel) PinFor(string, string, []netip.AddrPort, time.Duration, time.Duration) error {
	return nil
}
func (kernel) Unpin(string, string) error { return nil }
func (kernel) Pins(string) []nft.Entry    { return nil }

// names is the DNS of the test: each question may be answered otherwise.
type names func(name string) []netip.Addr

func (n names) Lookup(_ context.Context, name string) ([]netip.Addr, error) { return n(name), nil }
func (names) SetNames([]string)                                             {}

// way is the real way out: the warden's guard and pins, a dialer, its client.
func way(t testing.TB, a *team.Agent, grants []wire.Grant, dns names, life time.Duration) net.Config {
	t.Helper()
	dir := t.TempDir()
	policy := dial.NewPolicy(a).With(grants)
	me := uint32(os.Getuid())
	listen := func(name string) *stdnet.UnixListener {
		ln, err := stdnet.ListenUnix("unix", &stdnet.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	warden := pins.New(pins.Config{Table: kernel{}, Resolver: dns, TTL: life, Own: func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	}})
	if err := warden.Add("bh-pair-writer", me, listen("pin.sock"), policy); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ln := listen("dialer.sock")
	go func() {
		ended <- dialer.Serve(ctx, ln, dialer.Config{Gateway: me, PinSocket: filepath.Join(dir, "pin.sock"), Connections: 100})
	}()
	client := dialer.NewClient(filepath.Join(dir, "dialer.sock"))
	t.Cleanup(func() {
		_ = client.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = warden.Close()
	})
	return net.Config{
		Policy: func() *dial.Policy { return policy },
		Dial: func(ctx context.Context, host string, port uint16) (stdnet.Conn, error) {
			c, _, err := client.Dial(ctx, host, port)
			return c, err
		},
		Resolve: client.Addresses,
	}
}

// authority signs certificates for the test's servers.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert, key, pool}
}

func (a *authority) server(t testing.TB, h http.Handler, hosts ...string) (*httptest.Server, uint16) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	for _, h := range hosts {
		if ip := stdnet.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
			continue
		}
		tmpl.DNSNames = append(tmpl.DNSNames, h)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // what a client refuses is what is tested
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, portOfServer(s)
}

func portOfServer(s *httptest.Server) uint16 {
	return s.Listener.Addr().(*stdnet.TCPAddr).AddrPort().Port()
}

var loopback = netip.MustParseAddr("127.0.0.1")

func fixed(names ...string) map[string][]netip.Addr {
	out := map[string][]netip.Addr{}
	for _, n := range names {
		out[n] = []netip.Addr{loopback}
	}
	return out
}

// answered calls a tool and gives its answer.
func answered(t *testing.T, d *tool.Dispatcher, name string, input map[string]any) (net.Answer, *deny.Reason) {
	t.Helper()
	raw, reason := d.Call(t.Context(), tool.Caller{Team: "pair", Agent: "writer"}, name, object(t, input))
	var out net.Answer
	if reason == nil {
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
	}
	return out, reason
}

// echo tells what came.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "host": r.Host, "path": r.URL.RequestURI(), "header": r.Header, "body": string(body)})
}

type echoed struct {
	Method, Host, Path, Body string
	Header                   http.Header
}

func readEcho(t *testing.T, a net.Answer) echoed {
	t.Helper()
	var e echoed
	if err := json.Unmarshal([]byte(a.Body), &e); err != nil {
		t.Fatalf("%q: %v", a.Body, err)
	}
	return e
}

// stage is two TLS servers and a plain one, listed under names with loopback as
// their address.
type stage struct {
	d         *tool.Dispatcher
	journal   *journal
	decided   *decisions
	one, two  string // "https://one.example.com:PORT"
	plain     string
	elsewhere string // not listed
	onePort   uint16
}

// decisions are the records of egress.
type decisions struct {
	mu  sync.Mutex
	all []string
}

func (d *decisions) record(target string, v record.Verdict, _ *deny.Reason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, string(v)+" "+target)
}

func (d *decisions) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := strings.Join(d.all, ", ")
	d.all = nil
	return out
}

func newStage(t *testing.T) *stage {
	t.Helper()
	ca := newAuthority(t)
	s := &stage{decided: &decisions{}}
	mux := http.NewServeMux()
	_, p1 := ca.server(t, mux, "one.example.com", "127.0.0.1")
	_, p2 := ca.server(t, http.HandlerFunc(echo), "two.example.com")
	plain := httptest.NewServer(http.HandlerFunc(echo))
	t.Cleanup(plain.Close)
	p3 := portOfServer(plain)
	s.onePort = p1
	s.one = fmt.Sprintf("https://one.example.com:%d", p1)
	s.two = fmt.Sprintf("https://two.example.com:%d", p2)
	s.plain = fmt.Sprintf("http://plain.example.com:%d", p3)
	s.elsewhere = fmt.Sprintf("https://elsewhere.example.com:%d", p2)
	s.routes(mux)
	a := &team.Agent{Name: "writer", Hosts: fixed("one.example.com", "two.example.com", "plain.example.com", "wrong.example.com", "elsewhere.example.com")}
	a.Egress = []team.Destination{
		{Host: "one.example.com", Port: p1},
		{Host: "two.example.com", Port: p2},
		{Host: "plain.example.com", Port: p3},
		{Host: "wrong.example.com", Port: p1},
		{Address: loopback, Port: p1},
	}
	cfg := way(t, a, nil, func(string) []netip.Addr { return nil }, 0)
	cfg.Roots, cfg.Record, cfg.Timeout = ca.pool, s.decided.record, 20*time.Second
	s.d, s.journal = serve(t, cfg)
	return s
}

func (s *stage) routes(mux *http.ServeMux) {
	mux.HandleFunc("/echo", echo)
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		var status int
		_, _ = fmt.Sscan(q.Get("status"), &status)
		w.Header().Set("Location", q.Get("location"))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "moved")
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/hops/", func(w http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscanf(r.URL.Path, "/hops/%d", &n)
		if n == 0 {
			echo(w, r)
			return
		}
		http.Redirect(w, r, fmt.Sprintf("/hops/%d", n-1), http.StatusFound)
	})
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 1<<20)
		for range 64 { // without a length: the reader has to count
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/said", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10485761") })
	mux.HandleFunc("/full", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("a"), net.MaxAnswer)) })
	mux.HandleFunc("/bomb", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		chunk := make([]byte, 1<<20)
		for range 256 { // 256 MiB from 256 KiB
			if _, err := z.Write(chunk); err != nil {
				return
			}
		}
		_ = z.Close()
	})
	mux.HandleFunc("/gzip", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "packed")
		_ = z.Close()
	})
	mux.HandleFunc("/notgzip", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, "not packed at all")
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "short")
	})
	mux.HandleFunc("/binary", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte{0xff, 0, 1, 2}) })
	mux.HandleFunc("/cookies", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=1; Expires=Mon, 01 Jan 2030 00:00:00 GMT")
		w.Header().Add("Set-Cookie", "b=2")
		w.Header().Add("X-Twice", "1")
		w.Header().Add("X-Twice", "2")
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Long", strings.Repeat("h", 80<<10)) })
	mux.HandleFunc("/switch", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = c.Close()
	})
	mux.HandleFunc("/never", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("x")); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

func TestWhatIsSentAndWhatComesBack(t *testing.T) {
	s := newStage(t)
	for method, name := range map[string]string{"GET": "net_http_get", "POST": "net_http_post", "PUT": "net_http_put", "DELETE": "net_http_delete"} {
		input := map[string]any{"url": s.one + "/echo?a=b#c", "headers": map[string]string{"X-Key": "k", "authorization": "Bearer t"}}
		if method == "POST" || method == "PUT" {
			input["body"] = "böDy"
		}
		out, reason := answered(t, s.d, "agentos."+name, input)
		if reason != nil {
			t.Fatal(reason)
		}
		e := readEcho(t, out)
		if e.Method != method || e.Host != strings.TrimPrefix(s.one, "https://") || e.Path != "/echo?a=b" || e.Header.Get("X-Key") != "k" || e.Header.Get("Authorization") != "Bearer t" {
			t.Errorf("%s: %+v", method, e)
		}
		if (method == "POST" || method == "PUT") != (e.Body == "böDy") {
			t.Errorf("%s sent the body %q", method, e.Body)
		}
		if out.Status != 200 || out.ContentType != "application/json" || out.Encoding != "utf-8" || out.URL != s.one+"/echo?a=b" {
			t.Errorf("%+v", out)
		}
	}
	out, reason := answered(t, s.d, "net_http_post", map[string]any{"url": s.one + "/echo", "body": map[string]any{"n": json.Number("1.50")}})
	if e := readEcho(t, out); reason != nil || e.Body != `{"n":1.50}` || e.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%v %+v", reason, e)
	}
	out, _ = answered(t, s.d, "net_http_put", map[string]any{"url": s.one + "/echo", "bodyBase64": "aGk="})
	if e := readEcho(t, out); e.Body != "hi" {
		t.Errorf("%+v", e)
	}
	if out, _ = answered(t, s.d, "net_http_get", map[string]any{"url": s.one + "/binary"}); out.Body != "/wABAg==" || out.Encoding != "base64" {
		t.Errorf("%+v", out)
	}
	if out, _ = answered(t, s.d, "net_http_get", map[string]any{"url": s.one + "/gzip"}); out.Body != "packed" || out.Headers["content-encoding"] != "" {
		t.Errorf("%+v", out)
	}
	if out, _ = answered(t, s.d, "net_http_get", map[string]any{"url": s.one + "/cookies"}); out.Headers["set-cookie"] != "a=1; Expires=Mon, 01 Jan 2030 00:00:00 GMT\nb=2" || out.Headers["x-twice"] != "1, 2" {
		t.Errorf("%+v", out)
	}
	if out, reason = answered(t, s.d, "net_http_get", map[string]any{"url": s.one + "/full"}); reason != nil || len(out.Body) != net.MaxAnswer {
		t.Errorf("%v, %d bytes", reason, len(out.Body))
	}
	if out, reason = answered(t, s.d, "net_http_get", map[string]any{"url": s.plain + "/x"}); reason != nil || readEcho(t, out).Path != "/x" {
		t.Errorf("http where it is listed: %v", reason)
	}
	if out, reason = answered(t, s.d, "net_http_get", map[string]any{"url": fmt.Sprintf("https://[::ffff:127.0.0.1]:%d/echo", s.onePort)}); reason != nil || readEcho(t, out).Method != "GET" {
		t.Errorf("a listed address: %v", reason)
	}
	if out, _ = answered(t, s.d, "net_http_get", map[string]any{"url": s.one + "/absent"}); out.Status != 404 {
		t.Errorf("%+v", out)
	}
}

func TestABadAnswerIsAReason(t *testing.T) {
	s := newStage(t)
	for path, want := range map[string]deny.Code{
		"/huge": deny.ToolTooLarge, "/said": deny.ToolTooLarge, "/bomb": deny.ToolTooLarge, "/notgzip": deny.Unreachable, "/cut": deny.Unreachable,
		"/header": deny.Unreachable, "/switch": deny.Unreachable, "/loop": deny.Unreachable, "/hops/6": deny.Unreachable,
	} {
		if _, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.one + path}); reason == nil || reason.Code != want {
			t.Errorf("%s: %v, want %s", path, reason, want)
		}
	}
	if out, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.one + "/hops/5"}); reason != nil || out.Redirects != 5 {
		t.Errorf("five redirects: %v %+v", reason, out)
	}
	wrong := strings.Replace(s.one, "one.", "wrong.", 1)
	if _, reason := answered(t, s.d, "net_http_get", map[string]any{"url": wrong + "/echo"}); reason == nil || reason.Code != deny.Unreachable || !strings.Contains(reason.Why, "certificate") {
		t.Errorf("a certificate for another name: %v", reason)
	}
	if _, reason := answered(t, s.d, "net_http_get", map[string]any{"url": strings.Replace(s.plain, "http:", "https:", 1)}); reason == nil || reason.Code != deny.Unreachable {
		t.Errorf("TLS to who does not speak it: %v", reason)
	}
}

func TestAnUnknownAuthorityIsNotTrusted(t *testing.T) {
	_, port := newAuthority(t).server(t, http.HandlerFunc(echo), "one.example.com")
	a := &team.Agent{Name: "writer", Hosts: fixed("one.example.com"), Egress: []team.Destination{{Host: "one.example.com", Port: port}}}
	cfg := way(t, a, nil, func(string) []netip.Addr { return nil }, 0)
	cfg.Roots = newAuthority(t).pool
	d, _ := serve(t, cfg)
	if _, reason := answered(t, d, "net_http_get", map[string]any{"url": fmt.Sprintf("https://one.example.com:%d/", port)}); reason == nil || !strings.Contains(reason.Mend, "caFiles") {
		t.Error(reason)
	}
}

func TestWhoIsSlowIsLeft(t *testing.T) {
	ca := newAuthority(t)
	mux := http.NewServeMux()
	(&stage{}).routes(mux)
	_, port := ca.server(t, mux, "one.example.com")
	a := &team.Agent{Name: "writer", Hosts: fixed("one.example.com"), Egress: []team.Destination{{Host: "one.example.com", Port: port}}}
	cfg := way(t, a, nil, func(string) []netip.Addr { return nil }, 0)
	cfg.Roots, cfg.Timeout = ca.pool, 300*time.Millisecond
	d, _ := serve(t, cfg)
	for _, path := range []string{"/never", "/drip"} {
		if _, reason := answered(t, d, "net_http_get", map[string]any{"url": fmt.Sprintf("https://one.example.com:%d%s", port, path)}); reason == nil || reason.Code != deny.ToolTimeout {
			t.Errorf("%s: %v", path, reason)
		}
	}
}

// A proxy of the environment would see, and could change, everything.
func TestTheEnvironmentNamesNoProxy(t *testing.T) {
	asked := false
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer proxy.Close()
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(v, proxy.URL)
	}
	s := newStage(t)
	for _, u := range []string{s.one + "/echo", s.plain} {
		if _, reason := answered(t, s.d, "net_http_get", map[string]any{"url": u}); reason != nil {
			t.Error(reason)
		}
	}
	if asked {
		t.Error("the proxy of the environment was asked")
	}
}

func TestEffectsAreOnRecordBeforeTheyHappenAndAfter(t *testing.T) {
	s := newStage(t)
	if _, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.one + "/echo?secret=s3cret", "headers": map[string]string{"authorization": "t0ken"}}); reason != nil {
		t.Fatal(reason)
	}
	var got []string
	for _, r := range s.journal.take() {
		got = append(got, string(r.Verdict))
		if raw := string(object(t, r)); strings.Contains(raw, "s3cret") || strings.Contains(raw, "t0ken") {
			t.Errorf("a secret is on record: %s", raw)
		}
	}
	if strings.Join(got, " ") != "started allowed" {
		t.Errorf("records %v", got)
	}
	if d := s.decided.take(); d != "allowed "+strings.TrimPrefix(s.one, "https://") {
		t.Errorf("decisions: %s", d)
	}
	if _, reason := answered(t, s.d, "net_http_get", map[string]any{"url": s.elsewhere}); reason == nil {
		t.Fatal("it was answered")
	}
	if r := s.journal.take(); len(r) != 1 || r[0].Verdict != record.Denied || r[0].Reason.Code != deny.NotListed {
		t.Errorf("records %+v", r)
	}
	if d := s.decided.take(); d != "denied "+strings.TrimPrefix(s.elsewhere, "https://") {
		t.Errorf("decisions: %s", d)
	}
}
