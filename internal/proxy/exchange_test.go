package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

// between is a proxy in front of a real server over TCP.
type between struct {
	proxy string
	far   net.Listener
	dials atomic.Int64
	p     *Proxy
}

// put starts a proxy to far. careful leaves plain requests to net/http, whose
// answers are the measure.
func put(t testing.TB, far net.Listener, careful bool) *between {
	t.Helper()
	b := &between{far: far}
	policy := dial.NewPolicy(&team.Agent{Name: "writer", Egress: []team.Destination{{Host: "api.example.com", Port: 80}, {Host: "other.example.com", Port: 8080}, {Host: "api.example.com", Port: 9418}}})
	b.p = New(Config{
		Policy: func() *dial.Policy { return policy },
		Dial: func(ctx context.Context, _ string, _ uint16) (net.Conn, error) {
			b.dials.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", far.Addr().String())
		},
		Record: func(string, record.Verdict, *deny.Reason) {},
	})
	b.p.careful = careful
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.proxy = ln.Addr().String()
	var work sync.WaitGroup
	work.Go(func() { _ = b.p.ServeProxy(ln) })
	t.Cleanup(func() {
		_ = b.p.Close()
		_ = ln.Close()
		work.Wait()
	})
	return b
}

// each runs a test with plain requests served by themselves, and by net/http.
func each(t *testing.T, far func(t *testing.T) net.Listener, test func(t *testing.T, b *between)) {
	t.Helper()
	for name, careful := range map[string]bool{"plain": false, "net/http": true} {
		t.Run(name, func(t *testing.T) { test(t, put(t, far(t), careful)) })
	}
}

// handled is a server of net/http's.
func handled(h http.HandlerFunc) func(t *testing.T) net.Listener {
	return func(t *testing.T) net.Listener {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.Listener
	}
}

// scripted is a server that does what it likes with each connection.
func scripted(f func(c *net.TCPConn, r *bufio.Reader)) func(t *testing.T) net.Listener {
	return func(t *testing.T) net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var work sync.WaitGroup
		work.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				work.Go(func() {
					defer func() { _ = c.Close() }()
					f(c.(*net.TCPConn), bufio.NewReader(c))
				})
			}
		})
		t.Cleanup(func() { _ = ln.Close(); work.Wait() })
		return ln
	}
}

// talk is a client's connection.
type talk struct {
	*net.TCPConn
	t testing.TB
	r *bufio.Reader
}

func (b *between) talk(t testing.TB) *talk {
	t.Helper()
	c, err := net.Dial("tcp", b.proxy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // only so that a fault ends
	return &talk{c.(*net.TCPConn), t, bufio.NewReader(c)}
}

func (k *talk) say(text string) {
	k.t.Helper()
	if _, err := io.WriteString(k.TCPConn, text); err != nil {
		k.t.Fatal(err)
	}
}

// head reads an answer's head.
func (k *talk) head(method string) *http.Response {
	k.t.Helper()
	res, err := http.ReadResponse(k.r, &http.Request{Method: method})
	if err != nil {
		k.t.Fatal(err)
	}
	return res
}

// hear reads an answer.
func (k *talk) hear(method string) (*http.Response, string) {
	k.t.Helper()
	res := k.head(method)
	b, err := io.ReadAll(res.Body)
	if err != nil {
		k.t.Fatalf("after %q: %v", b, err)
	}
	return res, string(b)
}

// want reads an answer with a status and a body, and gives its head.
func (k *talk) want(method string, status int, body string) answered {
	k.t.Helper()
	res, got := k.hear(method)
	if res.StatusCode != status || got != body {
		k.t.Fatalf("%s with %.200q, want %d with %.200q", res.Status, got, status, body)
	}
	return answered{res.Header, res.Trailer, res.Close}
}

// answered is what is left of an answer whose body was read.
type answered struct {
	Header, Trailer http.Header
	Close           bool
}

// ended says that the proxy ends the connection.
func (k *talk) ended() {
	k.t.Helper()
	if b, _ := io.ReadAll(k.r); len(b) > 0 {
		k.t.Errorf("%q came after the last answer", b)
	}
}

func get(host, path string) string {
	return "GET http://" + host + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
}

const api, other = "api.example.com", "other.example.com:8080"

// echo answers with what reached it.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.RequestURI, body)
}

func TestOneClientsRequestsTakeOneConnectionToEachDestination(t *testing.T) {
	each(t, handled(echo), func(t *testing.T, b *between) {
		k := b.talk(t)
		for i := range 5 {
			path := fmt.Sprintf("/%d?q=%%41", i)
			k.say(get(api, path))
			k.want("GET", 200, "GET api.example.com "+path+" ")
			k.say(get(other, path))
			k.want("GET", 200, "GET other.example.com:8080 "+path+" ")
		}
		if n := b.dials.Load(); n != 2 {
			t.Errorf("%d connections for two destinations", n)
		}
	})
}

func TestRequestsInOneSegmentAreAnsweredInOrder(t *testing.T) {
	each(t, handled(echo), func(t *testing.T, b *between) {
		k := b.talk(t)
		post := "POST http://api.example.com/3 HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\n\r\nbody"
		k.say(get(api, "/1") + get(other, "/2") + post + get(api, "/4"))
		k.want("GET", 200, "GET api.example.com /1 ")
		k.want("GET", 200, "GET other.example.com:8080 /2 ")
		k.want("POST", 200, "POST api.example.com /3 body")
		k.want("GET", 200, "GET api.example.com /4 ")
	})
}

func TestARequestByteByByte(t *testing.T) {
	each(t, handled(echo), func(t *testing.T, b *between) {
		k := b.talk(t)
		for range 2 {
			for _, ch := range []byte(get(api, "/slowly")) {
				k.say(string(ch))
			}
			k.want("GET", 200, "GET api.example.com /slowly ")
		}
	})
}

func TestALongHeadIsServedAndTooLongAHeadIsNot(t *testing.T) {
	each(t, handled(echo), func(t *testing.T, b *between) {
		k := b.talk(t)
		k.say(get(api, "/"))
		k.want("GET", 200, "GET api.example.com / ")
		field := "X-Long: " + strings.Repeat("a", 10<<10) + "\r\n"
		k.say("GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n" + field + "\r\n")
		k.want("GET", 200, "GET api.example.com / ")
		k.say("GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n" + strings.Repeat(field, 8))
		if res := k.head("GET"); res.StatusCode != 431 {
			t.Errorf("%s", res.Status)
		}
	})
}

// TestAnswersWithAndWithoutBodies holds each kind of framing against the next
// answer on the same connection.
func TestAnswersWithAndWithoutBodies(t *testing.T) {
	for name, c := range map[string]struct {
		method, says, body string
		status             int
		field, value       string // of the answer to the client
		ends               bool   // the far side closes
	}{
		"a length":                     {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, "Content-Length", "5", false},
		"a length of nothing":          {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", 200, "Content-Length", "0", false},
		"the same length twice":        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, "Content-Length", "5", false},
		"chunks":                       {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", "hello", 200, "", "", false},
		"chunks and a length":          {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello", 200, "Content-Length", "", false},
		"until it closes":              {"GET", "HTTP/1.1 200 OK\r\n\r\nhello", "hello", 200, "Content-Length", "", true},
		"HTTP/1.0":                     {"GET", "HTTP/1.0 200 OK\r\n\r\nhello", "hello", 200, "", "", true},
		"HTTP/1.0 with a length":       {"GET", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, "Content-Length", "5", true},
		"HEAD with a length":           {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "", 200, "Content-Length", "5", false},
		"HEAD with chunks":             {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "", 200, "", "", false},
		"204":                          {"GET", "HTTP/1.1 204 No Content\r\n\r\n", "", 204, "Content-Length", "", false},
		"304":                          {"GET", "HTTP/1.1 304 Not Modified\r\nEtag: \"x\"\r\n\r\n", "", 304, "Etag", `"x"`, false},
		"304 with a length":            {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "", 304, "", "", false},
		"an odd status":                {"GET", "HTTP/1.1 299 Odd\r\nContent-Length: 5\r\n\r\nhello", "hello", 299, "", "", false},
		"it closes by Connection":      {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, "Connection", "", true},
		"a field for the proxy":        {"GET", "HTTP/1.1 200 OK\r\nConnection: x-mine\r\nX-Mine: 1\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, "X-Mine", "", false},
		"several values of one field":  {"GET", "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, "Set-Cookie", "a=1", false},
		"two lengths":                  {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "", 502, DeniedHeader, string(deny.Unreachable), true},
		"no status":                    {"GET", "hello\r\n\r\n", "", 502, DeniedHeader, string(deny.Unreachable), true},
		"half a head":                  {"GET", "HTTP/1.1 200 OK\r\nContent-Le", "", 502, DeniedHeader, string(deny.Unreachable), true},
		"too large a head":             {"GET", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", maxAnswer) + "\r\n\r\n", "", 502, DeniedHeader, string(deny.Unreachable), true},
		"another coding":               {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "", 502, DeniedHeader, string(deny.Unreachable), true},
		"a switch nobody asked for":    {"GET", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "", 502, DeniedHeader, string(deny.Unreachable), true},
		"a name that splits an answer": {"GET", "HTTP/1.1 200 OK\r\nX: a\rHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "", 502, DeniedHeader, string(deny.Unreachable), true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, scripted(func(conn *net.TCPConn, r *bufio.Reader) {
				for {
					q, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					if q.URL.Path == "/next" {
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext")
						continue
					}
					_, _ = io.WriteString(conn, c.says)
					if c.ends {
						return
					}
				}
			}), func(t *testing.T, b *between) {
				k := b.talk(t)
				for range 2 {
					k.say(c.method + get(api, "/")[3:])
					res, body := k.hear(c.method)
					if res.StatusCode != c.status || c.status != 502 && body != c.body {
						t.Fatalf("%s with %q", res.Status, body)
					}
					if c.field != "" && res.Header.Get(c.field) != c.value {
						t.Errorf("%s is %q", c.field, res.Header.Get(c.field))
					}
					if res.Header.Get("Date") == "" {
						t.Error("no Date")
					}
					k.say(get(api, "/next"))
					k.want("GET", 200, "next")
				}
			})
		})
	}
}
