package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/socket"
	"bulkhead/internal/tooltoken"
)

const sendToken = "a token that is long enough"

var sendAuthorization = "Authorization: Bearer " + tooltoken.Of(sendToken)

// sendSeen serves one connection and gives what its handlers saw and what came back.
// direct: by plainConn, else by net/http's server alone.
func sendSeen(t testing.TB, direct bool, say []byte) (saw []string, back []byte) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	var mu sync.Mutex
	handlers := map[string]http.HandlerFunc{}
	for _, path := range []string{"/v1/messages", "/v1/messages:batch"} {
		handlers[path] = func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			mu.Lock()
			saw = append(saw, fmt.Sprintf("%s %s %q %q %v", r.Method, r.RequestURI, r.Header, body, err))
			mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
		}
	}
	mux := http.NewServeMux()
	for path, h := range handlers {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if shown(r) != tooltoken.Of(sendToken) {
				http.Error(w, "no", http.StatusUnauthorized)
				return
			}
			h(w, r)
		})
	}
	quiet, err := socket.Quiet(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	var c net.Conn = quiet
	if direct {
		c = &plainConn{Conn: c, s: newPlain(context.Background(), sendToken, handlers)}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ln := &handed{conns: make(chan net.Conn, 1), done: ctx.Done()}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headTimeout, MaxHeaderBytes: 16 << 10}
	var work sync.WaitGroup
	work.Go(func() { _ = server.Serve(ln) })
	ln.conns <- c
	var read sync.WaitGroup
	read.Go(func() { back, _ = io.ReadAll(ends[1]) })
	_, _ = ends[1].Write(say)
	_ = ends[1].CloseWrite()
	read.Wait()
	_ = ends[1].Close()
	cancel() // the server waits for Accept
	_ = server.Close()
	work.Wait()
	mu.Lock()
	defer mu.Unlock()
	return saw, back
}

// meant is what responses say: their order, status, fields but the date, and bodies. Whether
// a connection goes on shows in what follows.
func meant(b []byte) (out []string) {
	in := bufio.NewReader(bytes.NewReader(b))
	for {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			return append(out, fmt.Sprint(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)))
		}
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		r.Header.Del("Date")
		out = append(out, fmt.Sprintf("%d %q %q %v", r.StatusCode, r.Header, body, err))
	}
}

func said(fields ...string) string {
	return "POST /v1/messages HTTP/1.1\r\nHost: gateway\r\n" + sendAuthorization + "\r\n" + strings.Join(fields, "\r\n")
}

var sayings = map[string]string{
	"one send":                   said("Content-Length: 2", "", "{}"),
	"three, one of them a batch": said("Content-Length: 2", "", "{}") + strings.Replace(said("Content-Length: 3", "", "[1]"), "messages", "messages:batch", 1) + said("Content-Length: 0", "", ""),
	"many lengths": said("Content-Length: 2", "", "{}") + said("Content-Length: 12", "", "{          }") + said("Content-Length: 02", "", "[]") + said("Content-Length: 2", "", "{}") +
		said("Content-Length:  2 ", "", "{}") + said("Content-Length:  3 ", "", "[0]") + said("Content-Length: 0", "", "") + said("Content-Length: 1", "", "1"),
	"another head and back":         said("Content-Length: 2", "", "{}") + said("Content-Length: 2", "X: y", "", "{}") + said("Content-Length: 3", "X: y", "", "[1]") + said("Content-Length: 2", "", "{}"),
	"a length that is none":         said("Content-Length: 2", "", "{}") + said("Content-Length: +2", "", "{}"),
	"a length within":               said("X: Content-Length: 2", "Content-Length: 2", "", "{}") + said("X: Content-Length: 3", "Content-Length: 3", "", "[1]"),
	"a known head too long":         said("Content-Length: 2", "", "{}") + said("Content-Length: 300000", "", strings.Repeat("x", 300000)) + said("Content-Length: 1", "", "1"),
	"a known head with more":        said("Content-Length: 2", "", "{}") + said("Content-Length: 2\r\nTransfer-Encoding: chunked", "", "{}"),
	"a large one":                   said("Content-Length: 70000", "", strings.Repeat("x", 70000)) + said("Content-Length: 1", "", "1"),
	"one beyond what is plain":      said("Content-Length: 300000", "", strings.Repeat("x", 300000)) + said("Content-Length: 1", "", "1"),
	"a wish to end it":              said("Connection: close", "Content-Length: 2", "", "{}") + said("Content-Length: 1", "", "1"),
	"a body that ends early":        said("Content-Length: 20", "", "{}"),
	"half a head":                   said("Content-Length: 2", "", "{}") + said("Content-Le"),
	"another method":                strings.Replace(said("Content-Length: 2", "", "{}"), "POST", "PUT", 1),
	"a GET between":                 said("Content-Length: 2", "", "{}") + "GET /v1/messages HTTP/1.1\r\nHost: x\r\n\r\n" + said("Content-Length: 2", "", "{}"),
	"a query":                       strings.Replace(said("Content-Length: 2", "", "{}"), "messages", "messages?x=y", 1),
	"an escape":                     strings.Replace(said("Content-Length: 2", "", "{}"), "messages", "m%65ssages", 1),
	"another token":                 strings.Replace(said("Content-Length: 2", "", "{}"), "Bearer ", "Bearer x", 1),
	"two tokens":                    said("Authorization: Bearer x", "Content-Length: 2", "", "{}"),
	"chunks":                        said("Transfer-Encoding: chunked", "", "2\r\n{}\r\n0\r\n\r\n") + said("Content-Length: 1", "", "1"),
	"chunks and a length":           said("Content-Length: 4", "Transfer-Encoding: chunked", "", "2\r\n{}\r\n0\r\n\r\n") + said("Content-Length: 1", "", "1"),
	"two lengths":                   said("Content-Length: 2", "Content-Length: 3", "", "{}1"),
	"a length twice":                said("Content-Length: 2", "Content-Length: 2", "", "{}") + said("Content-Length: 1", "", "1"),
	"a request inside a body":       said("Content-Length: 150", "", said("Content-Length: 2", "", "{}")),
	"a request behind a short body": said("Content-Length: 1", "", "{}") + said("Content-Length: 1", "", "1"),
	"an expectation":                said("Expect: 100-continue", "Content-Length: 2", "", "{}"),
	"nothing":                       "",
	"an empty line":                 "\r\n" + said("Content-Length: 2", "", "{}"),
	"a bare LF":                     strings.ReplaceAll(said("Content-Length: 2", "", "{}"), "\r\n", "\n"),
	"no HTTP":                       "\x16\x03\x01 hello",
	"a head that is too long":       said("X: "+strings.Repeat("x", 5000), "Content-Length: 2", "", "{}") + said("Content-Length: 1", "", "1"),
}

func likeNetHTTP(t testing.TB, say []byte) {
	t.Helper()
	saw, back := sendSeen(t, true, say)
	wantSaw, wantBack := sendSeen(t, false, say)
	if got, want := fmt.Sprintf("%q", saw), fmt.Sprintf("%q", wantSaw); got != want {
		t.Fatalf("of %q the handlers saw\n%.2000s\nby net/http\n%.2000s", say, got, want)
	}
	if got, want := fmt.Sprintf("%q", meant(back)), fmt.Sprintf("%q", meant(wantBack)); got != want {
		t.Fatalf("%q was answered\n%.2000s\nby net/http\n%.2000s", say, got, want)
	}
}

func TestPlainSendsAreServedLikeNetHTTPDoes(t *testing.T) {
	for name, say := range sayings {
		t.Run(name, func(t *testing.T) { likeNetHTTP(t, []byte(say)) })
	}
}

// FuzzSendsLikeNetHTTP: whatever is said, the handlers see the same requests, and
// the same is answered.
func FuzzSendsLikeNetHTTP(f *testing.F) {
	for _, say := range sayings {
		f.Add([]byte(say))
	}
	f.Fuzz(func(t *testing.T, say []byte) {
		if len(say) < 1<<16 {
			likeNetHTTP(t, say)
		}
	})
}

func TestASendInPiecesIsServed(t *testing.T) {
	say := said("Content-Length: 2", "", "{}")
	for cut := 1; cut < len(say); cut += 7 {
		here, there := net.Pipe()
		served := make(chan string, 4)
		s := newPlain(t.Context(), sendToken, map[string]http.HandlerFunc{"/v1/messages": func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			served <- string(b)
			w.WriteHeader(http.StatusCreated)
		}})
		var work sync.WaitGroup
		work.Go(func() {
			_, _ = (&plainConn{Conn: here, s: s}).Read(make([]byte, 4096))
			_ = here.Close()
		})
		var read sync.WaitGroup
		read.Go(func() { _, _ = io.Copy(io.Discard, there) })
		for range 2 {
			_, _ = there.Write([]byte(say[:cut]))
			_, _ = there.Write([]byte(say[cut:]))
			if got := <-served; got != "{}" {
				t.Fatalf("%q, cut at %d", got, cut)
			}
		}
		_ = there.Close()
		work.Wait()
		read.Wait()
	}
}

func TestAnIdleConnectionsDeadlineMovesOnceASecond(t *testing.T) {
	c := &countingConn{}
	s := &plainConn{Conn: c, s: newPlain(context.Background(), sendToken, nil)}
	for range 100 {
		s.idle()
	}
	if c.n < 1 || c.n > 10 { // 100 calls take no 10 seconds
		t.Errorf("%d deadlines were set", c.n)
	}
	s.head()
	s.idle()
	if time.Until(c.last) < headTimeout {
		t.Error("the deadline of the head was left")
	}
}

type countingConn struct {
	net.Conn
	n    int
	last time.Time
}

func (c *countingConn) SetReadDeadline(t time.Time) error {
	c.n++
	c.last = t
	return nil
}

// TestABodyHasTimeOfItsOwn: what is left of an idle connection's time is no bound
// of the next request's body.
func TestABodyHasTimeOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		handlers := map[string]http.HandlerFunc{"/v1/messages": func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err != nil || string(body) != "abc" {
				t.Errorf("%q, %v", body, err)
			}
			w.WriteHeader(http.StatusCreated)
		}}
		c := &plainConn{Conn: server, s: newPlain(t.Context(), sendToken, handlers)}
		var work sync.WaitGroup
		work.Go(func() {
			_ = c.SetReadDeadline(time.Now().Add(headTimeout)) // as net/http's server
			if n, err := c.Read(make([]byte, 4096)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("%d, %v", n, err)
			}
			_ = c.Close()
		})
		in := bufio.NewReader(client)
		for range 2 {
			_, _ = io.WriteString(client, said("Content-Length: 3\r\n\r\n"))
			time.Sleep(2 * time.Second)
			_, _ = io.WriteString(client, "abc")
			r, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _ = r.Body.Close(); r.StatusCode != http.StatusCreated {
				t.Error(r.Status)
			}
			time.Sleep(idleTimeout - time.Second)
		}
		_ = client.Close()
		work.Wait()
	})
}

// TestTheEndOfTheAPIEndsItsConnections: also one that net/http's server took and does
// not end, because it was being closed at that moment.
func TestTheEndOfTheAPIEndsItsConnections(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	f := os.NewFile(uintptr(pair[0]), "pair")
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	a := &api{conns: make(chan net.Conn), done: make(chan struct{})}
	var work sync.WaitGroup
	work.Go(func() { a.serve(c.(*net.UnixConn)) })
	taken, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	work.Wait()
	if _, err := taken.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
