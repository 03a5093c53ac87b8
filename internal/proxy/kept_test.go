package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// TestOnlyWhatIsSafeIsAskedTwice has a far side that ends a kept connection as
// the second request comes.
func TestOnlyWhatIsSafeIsAskedTwice(t *testing.T) {
	for name, c := range map[string]struct {
		second, says string // says is what the far side says to it before it hangs up
		status       int
		asked        int64 // requests that reached the far side in all
	}{
		"GET":                       {get(api, "/"), "", 200, 3},
		"HEAD":                      {"HEAD" + get(api, "/")[3:], "", 200, 3},
		"GET, after a byte":         {get(api, "/"), "H", 502, 2},
		"POST without a body":       {"POST" + get(api, "/")[3:], "", 502, 2},
		"POST with a body":          {"POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 2\r\n\r\nhi", "", 502, 2},
		"GET, after an early hints": {get(api, "/"), "HTTP/1.1 103 Early Hints\r\n\r\n", 502, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			b := put(t, scripted(func(conn *net.TCPConn, r *bufio.Reader) {
				for {
					q, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, q.Body)
					switch asked.Add(1) {
					case 2:
						_, _ = io.WriteString(conn, c.says)
						return
					default:
						_, _ = io.WriteString(conn, strings.TrimSuffix(ok, map[bool]string{true: "ok"}[q.Method == "HEAD"]))
					}
				}
			})(t), false)
			k := b.talk(t)
			method, _, _ := strings.Cut(c.second, " ")
			first := get(api, "/")
			if method == "POST" {
				first = "PUT" + first[3:] // so that both go by net/http's transport
			}
			k.say(first)
			k.want("GET", 200, "ok")
			k.say(c.second)
			res := k.head(method)
			for res.StatusCode == http.StatusEarlyHints {
				res = k.head(method)
			}
			if res.StatusCode != c.status || asked.Load() != c.asked {
				t.Errorf("%s after %d requests, want %d after %d", res.Status, asked.Load(), c.status, c.asked)
			}
		})
	}
}

func TestAConnectionThatWasClosedIsNotKept(t *testing.T) {
	closed := make(chan bool)
	b := put(t, scripted(func(conn *net.TCPConn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(conn, ok)
			_ = conn.Close()
			closed <- true
		}
	})(t), false)
	k := b.talk(t)
	for range 3 {
		k.say(get(api, "/"))
		k.want("GET", 200, "ok")
		<-closed
	}
	if n := b.dials.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

// TestAnAnswerThatNobodyAskedForIsGivenToNobody: otherwise the far side would
// answer the next request before it was made.
func TestAnAnswerThatNobodyAskedForIsGivenToNobody(t *testing.T) {
	extra := strings.Replace(ok, "\r\n\r\nok", "\r\n\r\nno", 1)
	for name, at := range map[string]string{"with the answer": "once", "after it": "later"} {
		t.Run(name, func(t *testing.T) {
			heard, said := make(chan bool), make(chan bool)
			b := put(t, scripted(func(conn *net.TCPConn, r *bufio.Reader) {
				if _, err := http.ReadRequest(r); err != nil {
					return
				}
				if at == "once" {
					_, _ = io.WriteString(conn, ok+extra)
					<-heard
				} else {
					_, _ = io.WriteString(conn, ok)
					<-heard
					_, _ = io.WriteString(conn, extra)
				}
				said <- true
				_, _ = io.Copy(io.Discard, r)
			})(t), false)
			k := b.talk(t)
			for range 3 {
				k.say(get(api, "/"))
				k.want("GET", 200, "ok")
				heard <- true
				<-said
			}
		})
	}
}

func TestKeptConnectionsAreBoundedAndSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &upstreams{open: map[*upConn]bool{}, idle: map[string][]*upConn{}}
		var far []net.Conn
		add := func(to string) *upConn {
			here, there := net.Pipe()
			far = append(far, there)
			u, err := p.add(here, to)
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
		for i := range 2 * maxIdle {
			p.keep(add(fmt.Sprint("host", i%8, ":80")))
		}
		if p.n != maxIdle || len(p.open) != maxIdle {
			t.Fatalf("%d kept, %d open", p.n, len(p.open))
		}
		for range 2 * maxIdleUp {
			p.keep(add("one:80"))
		}
		if len(p.idle["one:80"]) != 0 {
			t.Fatal("more are kept than may be")
		}
		if p.take("host9:80") != nil {
			t.Fatal("a connection to another destination was given")
		}
		at := p.take("host1:80")
		time.Sleep(idleUp + 2*sweepEvery)
		synctest.Wait()
		p.mu.Lock()
		if p.n != 0 || len(p.idle) != 0 || len(p.open) != 1 || !p.open[at] || p.sweeps != nil {
			t.Errorf("%d kept in %d lists, %d open after their time", p.n, len(p.idle), len(p.open))
		}
		p.mu.Unlock()
		for range maxIdleUp + 5 {
			p.keep(add("one:80"))
		}
		if n := len(p.idle["one:80"]); n != maxIdleUp {
			t.Errorf("%d are kept for one destination", n)
		}
		p.close()
		if _, err := at.conn.Write([]byte("x")); err == nil {
			t.Error("one at work outlives the proxy")
		}
		if here, _ := net.Pipe(); here != nil {
			if _, err := p.add(here, "one:80"); err == nil {
				t.Error("one is opened after the end")
			}
		}
		for _, c := range far {
			_ = c.Close()
		}
	})
}

// halves makes a pipe what the proxy takes for a connection.
type halves struct{ net.Conn }

func (h halves) CloseWrite() error { return h.Close() }

// TestHowLongAClientMayTake counts on a clock of its own.
func TestHowLongAClientMayTake(t *testing.T) {
	half := "GET http://api.exam"
	for name, c := range map[string]struct {
		says string
		want time.Duration // from then on until the proxy ends the connection
	}{
		"nothing at all":                  {"", headerTimeout},
		"half a head":                     {half, headerTimeout},
		"nothing after an answer":         {get(api, "/"), idleTimeout},
		"half a head after an answer":     {get(api, "/") + half, headerTimeout},
		"half a POST after an answer":     {get(api, "/") + "POST http://api.exam", headerTimeout},
		"half a head after two, and POST": {get(api, "/") + "PUT" + get(api, "/")[3:] + get(api, "/") + half, headerTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &upstream{}
				policy := dial.NewPolicy(&team.Agent{Name: "writer", Egress: []team.Destination{{Host: api, Port: 80}}})
				p := New(Config{
					Policy: func() *dial.Policy { return policy }, Dial: func(ctx context.Context, h string, n uint16) (net.Conn, error) { return u.dial(ctx, h, n) },
					Record: func(string, record.Verdict, *deny.Reason) {},
				})
				ln := newHandover()
				done := make(chan error, 1)
				go func() { done <- p.ServeProxy(ln) }()
				here, there := net.Pipe()
				ln.put(halves{there})
				synctest.Wait()
				at := time.Now()
				go func() { _, _ = io.WriteString(here, c.says) }()
				_, _ = io.Copy(io.Discard, here)
				if took := time.Since(at); took != c.want {
					t.Errorf("it took %v, want %v", took, c.want)
				}
				_ = p.Close()
				_ = ln.Close()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestEveryRequestOfATunnelIsHeldToItsHost also after plain ones.
func TestEveryRequestOfATunnelIsHeldToItsHost(t *testing.T) {
	inside := func(host string) string { return "GET /x HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	for name, c := range map[string]struct {
		says, code string
	}{
		"another host":           {inside("evil.example"), string(deny.NameMismatch)},
		"another port":           {inside(api + ":81"), string(deny.NameMismatch)},
		"another listed host":    {inside(other), string(deny.NameMismatch)},
		"an absolute target":     {get("evil.example", "/"), string(deny.NameMismatch)},
		"a tunnel in it":         {"CONNECT evil.example:80 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", string(deny.BadTarget)},
		"another host by a POST": {"POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n", string(deny.NameMismatch)},
		"the gateway's own name": {inside("bulkhead"), string(deny.NameMismatch)},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, handled(echo), func(t *testing.T, b *between) {
				k := b.talk(t)
				k.say("CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n")
				k.head("CONNECT")
				for range 2 {
					k.say(inside("api.example.com"))
					k.want("GET", 200, "GET api.example.com /x ")
					k.say(inside("API.example.com:80"))
					k.want("GET", 200, "GET api.example.com /x ")
				}
				k.say(c.says)
				if res, _ := k.hear("GET"); res.Header.Get(DeniedHeader) != c.code {
					t.Errorf("%s %v", res.Status, res.Header)
				}
				if n := b.dials.Load(); n != 1 {
					t.Errorf("%d connections for one tunnel", n)
				}
			})
		})
	}
}
