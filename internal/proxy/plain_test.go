package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/plain"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

func TestWhatIsWrittenForAPlainRequest(t *testing.T) {
	r := plain.Get([]byte("GET http://API.example.com:80/a%2Fb//c?q=%41#f HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-For: 1\r\nforwarded: x\r\nConnection: close\r\n" +
		"proxy-authorization: Basic eA==\r\nKeep-Alive: 5\r\nB: 2\r\nA: 1\r\nb: 3\r\nUser-Agent: me\r\n\r\n"))
	if r == nil {
		t.Fatal("it is not plain")
	}
	var w bytes.Buffer
	if err := compose(&w, r, asked("api.example.com", 80)); err != nil {
		t.Fatal(err)
	}
	const want = "GET /a%2Fb//c?q=%41#f HTTP/1.1\r\nHost: api.example.com\r\nA: 1\r\nB: 2\r\nB: 3\r\nUser-Agent: me\r\n\r\n"
	if got := w.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// witness is a server that writes down each whole request that reaches it.
type witness struct {
	p    *Proxy
	addr string
	work sync.WaitGroup // its connections
	mu   sync.Mutex
	saw  []string
}

func (s *witness) dial(context.Context, string, uint16) (net.Conn, error) {
	here, there := net.Pipe()
	s.work.Go(func() {
		defer func() { _ = there.Close() }()
		r := bufio.NewReader(there)
		for {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, err := io.ReadAll(q.Body)
			if err != nil {
				return
			}
			text := fmt.Sprintf("%s %q Host %q body %q", q.Method, q.RequestURI, q.Host, body)
			for _, name := range slices.Sorted(maps.Keys(q.Header)) {
				text += fmt.Sprintf(" %s %q", name, q.Header[name])
			}
			s.mu.Lock()
			s.saw = append(s.saw, text)
			s.mu.Unlock()
			if _, err := io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"+map[bool]string{false: "ok"}[q.Method == "HEAD"]); err != nil {
				return
			}
		}
	})
	return here, nil
}

// taken gives what was seen since the last time, when nobody is at work.
func (s *witness) taken() []string {
	for len(s.p.slots) > 0 {
		time.Sleep(100 * time.Microsecond)
	}
	s.p.upstreams.forget()
	s.p.transport.CloseIdleConnections()
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	saw := s.saw
	s.saw = nil
	return saw
}

// forget closes those that are idle.
func (p *upstreams) forget() {
	p.mu.Lock()
	var gone []*upConn
	for _, list := range p.idle {
		gone = append(gone, list...)
	}
	p.idle, p.n = map[string][]*upConn{}, 0
	p.mu.Unlock()
	for _, u := range gone {
		u.close()
	}
}

// behind starts a proxy in front of a witness.
func behind(t testing.TB, careful bool) *witness {
	t.Helper()
	s := &witness{}
	policy := dial.NewPolicy(&team.Agent{Name: "writer", Egress: []team.Destination{{Host: api, Port: 80}}})
	p := New(Config{Policy: func() *dial.Policy { return policy }, Dial: s.dial, Record: func(string, record.Verdict, *deny.Reason) {}})
	p.careful = careful
	s.p = p
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() { _ = p.ServeProxy(ln) })
	t.Cleanup(func() { _ = p.Close(); _ = ln.Close(); work.Wait() })
	s.addr = ln.Addr().String()
	return s
}

// statuses sends text and a last request, and gives the statuses that came.
// whole says that the proxy has ended the connection, as the last request asks.
func (s *witness) statuses(t testing.TB, text string) (got []int, whole bool) {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond)) // what is left open by text ends then
	go func() { _, _ = io.WriteString(c, text+lastRequest) }()
	r := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return got, !errors.Is(err, os.ErrDeadlineExceeded)
		}
		got = append(got, res.StatusCode)
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return got, !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

const lastRequest = "GET http://api.example.com/last HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"

// FuzzPlainLikeNetHTTP feeds a client's bytes to the loop of plain requests and
// to net/http's server alone: the far side has to see the same requests to the
// last field and byte, and the client the same statuses.
func FuzzPlainLikeNetHTTP(f *testing.F) {
	one := get(api, "/1")
	for _, s := range []string{
		one, one + one, one + "POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\n\r\nbody" + one,
		one + "POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n" + one,
		one + "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + one,
		one + "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 60\r\n\r\n" + one,
		one + "GET http://api.example.com/ HTTP/1.1\nHost: api.example.com\n\n" + one,
		one + "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nX: a\n\nGET http://api.example.com/2 HTTP/1.1\r\nHost: x\r\n\r\n",
		one + "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n b\r\n\r\n",
		one + "GET http://api.example.com/?a;b=%4 HTTP/1.1\r\nHost: a,b\r\n\r\n", one + get("evil.example", "/") + one, one + "\r\n\r\n" + one,
		one + "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "GET http://api.example.com//x/../%2e#f HTTP/1.1\r\nHost: x\r\nConnection: close, x\r\nX: 1\r\nUser-Agent:\r\n\r\n",
		"GET http://API.EXAMPLE.COM.:80?q HTTP/1.1\r\nHost: x\r\nPragma: no-cache\r\nA: 1\r\na: 2\r\nX-Forwarded-For: 1\r\n\r\n",
		one + "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nX: " + strings.Repeat("a", 5000) + "\r\n\r\n" + one,
		"HEAD http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	} {
		f.Add(s)
	}
	quick, careful := behind(f, false), behind(f, true)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 8192 {
			return
		}
		got, whole := quick.statuses(t, text)
		want, same := careful.statuses(t, text)
		a, b := quick.taken(), careful.taken()
		if !whole || !same {
			return // text asks for more than comes: how far each came is a matter of time
		}
		if !slices.Equal(a, b) {
			t.Fatalf("%q made the far side see\n%s\nbut by net/http\n%s", text, strings.Join(a, "\n"), strings.Join(b, "\n"))
		}
		// What follows the head of an answer to HEAD is read as its body here.
		if !slices.Equal(got, want) && !strings.Contains(text, "HEAD") {
			t.Fatalf("%q was answered with %v, by net/http with %v", text, got, want)
		}
	})
}
