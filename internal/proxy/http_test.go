package proxy

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

// upstream is a server that writes down what reaches it, byte by byte.
type upstream struct {
	mu    sync.Mutex
	got   bytes.Buffer
	hosts []string
}

func (u *upstream) dial(context.Context, string, uint16) (net.Conn, error) {
	here, there := net.Pipe()
	go func() { // ends with the connection
		defer func() { _ = there.Close() }()
		r := bufio.NewReader(io.TeeReader(there, u))
		for {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			u.mu.Lock()
			u.hosts = append(u.hosts, q.Host)
			u.mu.Unlock()
			_, _ = io.Copy(io.Discard, q.Body)
			_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}()
	return here, nil
}

func (u *upstream) Write(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.got.Write(b)
}

func (u *upstream) seen() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.got.String()
}

func start(t testing.TB) (*upstream, string) {
	t.Helper()
	u := &upstream{}
	policy := dial.NewPolicy(&team.Agent{Name: "writer", Egress: []team.Destination{{Host: "api.example.com", Port: 80}}})
	p := New(Config{
		Policy: func() *dial.Policy { return policy },
		Dial:   u.dial, Record: func(string, record.Verdict, *deny.Reason) {},
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.ServeProxy(ln) }()
	t.Cleanup(func() {
		_ = p.Close()
		_ = ln.Close()
		t.Logf("proxy ended: %v", <-done)
	})
	return u, ln.Addr().String()
}

func hear(t testing.TB, addr, text string) string {
	t.Helper()
	return say(t, addr, text, false)
}

// say sends text and reads the answer. A client that hangs up before it has
// the answer calls its request off; patient waits for the first byte.
func say(t testing.TB, addr, text string, patient bool) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, text)
	r := bufio.NewReader(c)
	if patient {
		_, _ = r.Peek(1)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	b, _ := io.ReadAll(r)
	return string(b)
}

func TestRequestsThatCouldMeanTwoThings(t *testing.T) {
	for name, c := range map[string]struct{ says, status, never string }{
		"absolute-form":                  {"GET http://api.example.com/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "200", "http://"},
		"Host of another":                {"GET http://api.example.com/x HTTP/1.1\r\nHost: evil.example\r\n\r\n", "200", "evil"},
		"proxy credentials are stripped": {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nProxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\n\r\n", "200", "c2VjcmV0"},
		"hop-by-hop field by Connection": {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nConnection: x-secret\r\nX-Secret: 1\r\n\r\n", "200", "X-Secret"},
		"two Host fields":                {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example\r\n\r\n", "400", "GET"},
		"two lengths":                    {"POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400", "POST"},
		"a length and chunks":            {"POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "", "evil"},
		"an unknown transfer coding":     {"POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501", "POST"},
		"a space before the colon":       {"GET http://api.example.com/ HTTP/1.1\r\nHost : api.example.com\r\n\r\n", "400", "GET"},
		"a folded field":                 {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n b\r\n\r\n", "", "\n b"},
		"origin-form":                    {"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400", "GET"},
		"a user in the target":           {"GET http://api.example.com@evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "400", "GET"},
		"https in absolute-form":         {"GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400", "GET"},
		"CONNECT without a port":         {"CONNECT api.example.com HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400", "x"},
		"an odd address":                 {"GET http://0x7f.1/ HTTP/1.1\r\nHost: x\r\n\r\n", "400", "GET"},
		"an unlisted name":               {"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403", "GET"},
		"an upgrade to HTTP/2":           {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n", "200", "h2c"},
		"an upgrade among several":       {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n", "200", "h2c"},
		"two upgrades":                   {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n", "200", "h2c"},
		"HTTP/2 preface":                 {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "PRI"},
	} {
		t.Run(name, func(t *testing.T) {
			u, addr := start(t)
			got := say(t, addr, c.says, true)
			if !strings.HasPrefix(got, "HTTP/1.1 "+c.status) {
				t.Errorf("answer %q, want %s", got, c.status)
			}
			if strings.Contains(u.seen(), c.never) {
				t.Errorf("the server saw %q in %q", c.never, u.seen())
			}
		})
	}
}

// The reason that is answered is the one on record.
func TestAPasswordInATargetIsInNoReason(t *testing.T) {
	for _, target := range []string{"CONNECT user:SECRET@api.example.com:80", "CONNECT SECRET@api.example.com:80", "GET http://user:SECRET@api.example.com/", "CONNECT user:SECRET@"} {
		_, addr := start(t)
		got := say(t, addr, target+" HTTP/1.1\r\nHost: api.example.com\r\n\r\n", true)
		if !strings.HasPrefix(got, "HTTP/1.1 400") || strings.Contains(got, "SECRET") {
			t.Errorf("%s: %s", target, got)
		}
	}
}

func FuzzAbsoluteForm(f *testing.F) {
	f.Add("GET http://api.example.com/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	f.Add("POST http://api.example.com/ HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n")
	u, addr := start(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		hear(t, addr, text)
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, h := range u.hosts {
			if h != "api.example.com" {
				t.Fatalf("%q made the server see Host %q", text, h)
			}
		}
		u.hosts = nil
		u.got.Reset()
	})
}
