package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/proxy"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
	"bulkhead/test/system/egress"
	"bulkhead/test/system/throwaway"
)

func TestMain(m *testing.M) { egress.Main(m) }

var listed = netip.MustParseAddr("203.0.113.10")

func agent() *team.Agent {
	return &team.Agent{
		Name: "writer",
		Egress: []team.Destination{
			{Host: "api.example.com", Port: 443, SNI: team.SNIExact},
			{Host: "api.example.com", Port: 80, SNI: team.SNIExact},
			{Host: "any.example.com", Port: 443, SNI: team.SNIAny},
			{Host: "ssh.example.com", Port: 22, SNI: team.SNIExact},
			{Host: "own.example.com", Port: 80, SNI: team.SNIExact},
			{Host: "gone.example.com", Port: 80, SNI: team.SNIExact},
			{Host: "down.example.com", Port: 81, SNI: team.SNIExact},
			{Host: "host", Port: 8080, SNI: team.SNIExact},
		},
		Hosts: map[string][]netip.Addr{
			"api.example.com": {listed}, "any.example.com": {listed}, "ssh.example.com": {listed}, "down.example.com": {listed},
		},
	}
}

// client goes through the agent's proxy.
func client(s *egress.Stack) *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		Proxy:             func(*http.Request) (*url.URL, error) { return url.Parse("http://user:secret@" + s.Static.Proxy) },
		DialContext:       func(_ context.Context, _, addr string) (net.Conn, error) { return s.Dial(addr) },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // #nosec G402 -- a test server's certificate
		DisableKeepAlives: true,
	}}
}

func denied(t *testing.T, code deny.Code, resp *http.Response, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v, want the denial %s", err, code)
	}
	defer func() { _ = resp.Body.Close() }()
	var e deny.Envelope
	if derr := json.NewDecoder(resp.Body).Decode(&e); derr != nil || resp.Header.Get(proxy.DeniedHeader) != string(code) || e.PossibleFix == "" {
		t.Fatalf("%s, header %q, %+v, %v; want the denial %s", resp.Status, resp.Header.Get(proxy.DeniedHeader), e, derr, code)
	}
}

func web(t *testing.T, addr string, secure bool) {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			w.Header().Set("Trailer", "X-Sum")
			for i := range 3 {
				_, _ = fmt.Fprintf(w, "part %d\n", i)
				w.(http.Flusher).Flush()
				if i == 0 {
					<-r.Context().Done() // the client must have part 0 before the rest exists
					return
				}
			}
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-Sum", "42")
		case "/upgrade":
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(c, rw)
		default:
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %s host=%s auth=%q body=%d", r.Method, r.URL.Path, r.Host, r.Header.Get("Proxy-Authorization"), len(body))
		}
	}))
	_ = srv.Listener.Close()
	srv.Listener = ln
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
}

func get(t *testing.T, c *http.Client, u string) string {
	t.Helper()
	resp, err := c.Get(u)
	if err != nil {
		t.Fatalf("%s: %v", u, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %s %s %v", u, resp.Status, b, err)
	}
	return string(b)
}

func TestFromTheRuntimeToTheWorldAndNoFurther(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		hosts, err := os.ReadFile("/etc/hosts")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/etc/hosts", append(hosts, "\n203.0.113.11 own.example.com\n"...), 0o644); err != nil { // #nosec G306 -- every id reads it
			t.Fatal(err)
		}
		if err := os.WriteFile("/etc/resolv.conf", []byte("nameserver 203.0.113.10\noptions timeout:1 attempts:1\n"), 0o644); err != nil { // #nosec G306 -- every id reads it
			t.Fatal(err)
		}
		web(t, "203.0.113.10:80", false)
		web(t, "203.0.113.10:443", true)
		egress.Echo(t, "203.0.113.10:22", "SSH-2.0-test\r\n")
		egress.Echo(t, "127.0.0.1:8080", "local\n")
		egress.Echo(t, "203.0.113.11:80", "")
		a := agent()
		s := egress.Start(t, a)
		c := client(s)

		t.Run("absolute-form", func(t *testing.T) {
			if got := get(t, c, "http://API.example.com/x"); got != `GET /x host=api.example.com auth="" body=0` {
				t.Fatal(got)
			}
		})
		t.Run("CONNECT with TLS", func(t *testing.T) {
			if got := get(t, c, "https://api.example.com/x"); !strings.HasPrefix(got, "GET /x host=api.example.com") {
				t.Fatal(got)
			}
		})
		t.Run("streaming", func(t *testing.T) {
			resp, err := c.Get("http://api.example.com/stream")
			if err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(resp.Body).ReadString('\n')
			_ = resp.Body.Close()
			if err != nil || line != "part 0\n" {
				t.Fatal(line, err)
			}
		})
		t.Run("trailers", func(t *testing.T) {
			resp, err := c.Get("http://api.example.com/trailer")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.Trailer.Get("X-Sum") != "42" {
				t.Fatal(resp.Trailer)
			}
		})
		t.Run("upload", func(t *testing.T) {
			resp, err := c.Post("http://api.example.com/up", "text/plain", bytes.NewReader(make([]byte, 3<<20)))
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if !strings.HasSuffix(string(b), "body=3145728") {
				t.Fatal(string(b))
			}
		})
		for _, u := range []string{"http://evil.example/", "https://evil.example/", "http://169.254.169.254/latest"} {
			t.Run("unlisted "+u, func(t *testing.T) {
				if strings.HasPrefix(u, "https") { // Go's client hides the body of a refused CONNECT
					raw(t, s, s.Static.Proxy, "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", "HTTP/1.1 403 ", string(deny.NotListed), "possibleFix")
					return
				}
				resp, err := c.Get(u)
				denied(t, deny.NotListed, resp, err)
			})
		}
		for name, want := range map[string]deny.Code{
			"http://api.example.com:8081/": deny.PortNotListed, "http://api.example.com:443/": deny.NoServerName,
			"http://own.example.com/": deny.SpecialRange, "http://gone.example.com/": deny.NameUnresolved, "http://down.example.com:81/": deny.Unreachable,
		} {
			t.Run(name, func(t *testing.T) {
				resp, err := c.Get(name)
				if name == "http://own.example.com/" { // an address of this host in a documentation range: either rule may name it first
					if got := deny.Code(resp.Header.Get(proxy.DeniedHeader)); got == deny.OwnAddress {
						want = deny.OwnAddress
					}
				}
				denied(t, want, resp, err)
			})
		}
		t.Run("CONNECT to port 80, as pi and openclaw do", func(t *testing.T) {
			conn := raw(t, s, s.Static.Proxy, "CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n", "HTTP/1.1 200 ")
			_, _ = io.WriteString(conn, "GET /one HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			expect(t, conn, "GET /one host=api.example.com")
			_, _ = io.WriteString(conn, "GET /two HTTP/1.1\r\nHost: evil.example\r\n\r\n")
			expect(t, conn, string(deny.NameMismatch))
		})
		t.Run("upgrade through the proxy", func(t *testing.T) {
			conn := raw(t, s, s.Static.Proxy, "GET http://api.example.com/upgrade HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "101 Switching")
			_, _ = io.WriteString(conn, "over the socket")
			expect(t, conn, "over the socket")
		})
		t.Run("static TLS", func(t *testing.T) {
			conn := mustDial(t, s, s.Address("api.example.com", 443))
			tc := tls.Client(conn, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true}) // #nosec G402 -- a test server's certificate
			if err := tc.Handshake(); err != nil {
				t.Fatal(err)
			}
		})
		for name, sni := range map[string]string{"another name": "evil.example", "no name": ""} {
			t.Run("static TLS with "+name, func(t *testing.T) {
				conn := mustDial(t, s, s.Address("api.example.com", 443))
				err := tls.Client(conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake() // #nosec G402 -- a test server's certificate
				if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
					t.Fatalf("%v, want the alert", err)
				}
				conn = mustDial(t, s, s.Address("any.example.com", 443))
				if err := tls.Client(conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake(); err != nil { // #nosec G402 -- a test server's certificate
					t.Fatalf("sni: any: %v", err)
				}
			})
		}
		t.Run("static port 443 without TLS", func(t *testing.T) {
			conn := mustDial(t, s, s.Address("api.example.com", 443))
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			if b, _ := io.ReadAll(conn); len(b) != 0 {
				t.Fatalf("%q", b)
			}
		})
		t.Run("static HTTP with another Host", func(t *testing.T) {
			conn := mustDial(t, s, s.Address("api.example.com", 80))
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
			expect(t, conn, string(deny.NameMismatch))
		})
		t.Run("server-first protocol with half-close", func(t *testing.T) {
			conn := mustDial(t, s, s.Address("ssh.example.com", 22))
			expect(t, conn, "SSH-2.0-test\r\n")
			_, _ = io.WriteString(conn, "SSH-2.0-client\r\n")
			_ = conn.(*net.TCPConn).CloseWrite()
			if b, err := io.ReadAll(conn); string(b) != "SSH-2.0-client\r\n" || err != nil {
				t.Fatalf("%q %v", b, err)
			}
		})
		t.Run("the host's own loopback, one listed port", func(t *testing.T) {
			expect(t, mustDial(t, s, s.Address("host", 8080)), "local\n")
		})
		t.Run("health", func(t *testing.T) {
			conn, err := s.Connect("gateway.sock", egress.IDs.Runtime())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, "GET /v1/health HTTP/1.1\r\nHost: gateway\r\n\r\n")
			expect(t, conn, `"status":"ok"`)
		})
		t.Run("a wrong token or a wrong descriptor", func(t *testing.T) {
			for token, f := range map[string]func() *os.File{
				"wrong-token-of-some-length": func() *os.File {
					ln, _ := net.Listen("tcp", "127.0.0.1:0")
					f, _ := ln.(*net.TCPListener).File()
					return f
				},
				egress.Token: func() *os.File { f, _ := os.Open("/etc/passwd"); return f },
			} {
				conn, err := s.Connect("gateway.sock", egress.IDs.Runtime())
				if err != nil {
					t.Fatal(err)
				}
				w := wire.New(conn)
				if _, err := w.Greet(wire.GatewayProtocol, wire.GatewayVersion); err != nil {
					t.Fatal(err)
				}
				_ = w.Send(1, wire.VerbListen, wire.ListenRequest{Token: token, Listeners: []wire.Listener{{Address: "x"}}}, f())
				if m, _, err := w.Recv(); err != nil || m.Verb != wire.VerbError {
					t.Fatalf("%q: %+v %v", token, m, err)
				}
				_ = w.Close()
			}
		})
		t.Run("another id at each socket", func(t *testing.T) {
			for _, name := range []string{"gateway.sock", "dialer.sock", "pin.sock"} {
				if err := os.Chmod(s.Dir+"/"+name, 0o666); err != nil { // #nosec G302 -- so that only the peer check is left
					t.Fatal(err)
				}
				conn, err := s.Connect(name, 4242)
				if err != nil {
					t.Fatal(err)
				}
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err := io.WriteString(conn, "GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"); err == nil {
					if b, err := io.ReadAll(conn); len(b) != 0 || os.IsTimeout(err) {
						t.Fatalf("%s answered a foreign id: %q %v", name, b, err)
					}
				}
				_ = conn.Close()
			}
		})
		t.Run("the warden is away, then back", func(t *testing.T) {
			_ = s.Pins.Close()
			if got := get(t, c, "http://api.example.com/x"); got == "" {
				t.Fatal("a cached pin must serve")
			}
			resp, err := c.Get("http://gone.example.com/")
			denied(t, deny.PinFailed, resp, err)
			s.StartPins(a)
			get(t, c, "https://any.example.com/x")
		})
		t.Run("a flush of the rules is survived", func(t *testing.T) {
			if err := s.Table.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			get(t, c, "http://api.example.com/x")
		})
		t.Run("revoked while it runs", func(t *testing.T) {
			conn := mustDial(t, s, s.Address("ssh.example.com", 22))
			expect(t, conn, "SSH-2.0-test\r\n")
			less := agent()
			less.Egress = less.Egress[:1]
			if err := s.Pins.SetPolicy(egress.Account, dial.NewPolicy(less)); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, "SSH-2.0-client\r\n")
			if _, err := io.ReadAll(conn); os.IsTimeout(err) {
				t.Fatal("the open connection goes on")
			}
			resp, err := c.Get("http://down.example.com:81/")
			denied(t, deny.NotListed, resp, err)
		})
		s.Gateway.Stop()
		seen := map[string]int{}
		for l := range strings.Lines(s.Gateway.Output()) {
			var r struct {
				Target, Verdict string
				Reason          *deny.Reason
			}
			if err := json.Unmarshal([]byte(l), &r); err != nil {
				t.Fatalf("%v: %s", err, l)
			}
			code := ""
			if r.Reason != nil {
				code = string(r.Reason.Code)
			}
			seen[r.Verdict+" "+r.Target+" "+code]++
		}
		for _, want := range []string{"denied evil.example:443 egress.not_listed", "allowed api.example.com:80 ", "allowed ssh.example.com:22 ", "denied api.example.com:443 egress.name_mismatch"} {
			if n := seen[want]; n < 1 || n > 2 {
				t.Errorf("%q: %d lines, want one, and one for its repeats; all: %v", want, n, seen)
			}
		}
	})
}

func mustDial(t *testing.T, s *egress.Stack, addr string) net.Conn {
	t.Helper()
	conn, err := s.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// raw sends text to addr and wants every one of parts in the answer.
func raw(t *testing.T, s *egress.Stack, addr, text string, parts ...string) net.Conn {
	t.Helper()
	conn := mustDial(t, s, addr)
	_, _ = io.WriteString(conn, text)
	expect(t, conn, parts...)
	return conn
}

func expect(t *testing.T, conn net.Conn, parts ...string) {
	t.Helper()
	var got []byte
	b := make([]byte, 4096)
	for {
		n, err := conn.Read(b)
		got = append(got, b[:n]...)
		all := true
		for _, p := range parts {
			all = all && bytes.Contains(got, []byte(p))
		}
		if all {
			return
		}
		if err != nil {
			t.Fatalf("%q ended with %v, want %q", got, err, parts)
		}
	}
}
