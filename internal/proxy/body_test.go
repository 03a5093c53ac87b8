package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/team"
)

// late is a connection whose writer goes on late once the end of a request has
// been written: the answer is on its way by then.
type late struct{ net.Conn }

const endOfBody = "the end of the body"

func (c late) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if bytes.HasSuffix(b, []byte(endOfBody)) {
		time.Sleep(50 * time.Millisecond)
	}
	return n, err
}

// A far side that answers as soon as it has the whole request, as models do that
// stream, is heard to its end, whatever the one that wrote the request does then.
func TestAnAnswerThatBeginsWithTheEndOfTheRequestIsWhole(t *testing.T) {
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for range 20 { // over a time that is longer than the writer is late
			_, _ = io.WriteString(w, "data: x\n\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	})}
	go func() { _ = server.Serve(far) }()
	policy := dial.NewPolicy(&team.Agent{Name: "writer", Egress: []team.Destination{{Host: "api.example.com", Port: 80}}})
	p := New(Config{
		Policy: func() *dial.Policy { return policy }, Record: func(string, record.Verdict, *deny.Reason) {},
		Dial: func(ctx context.Context, _ string, _ uint16) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", far.Addr().String())
			return late{c}, err
		},
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.ServeProxy(ln) }()
	t.Cleanup(func() {
		_, _, _ = p.Close(), ln.Close(), server.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	client := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: ln.Addr().String()})}
	defer client.CloseIdleConnections()
	for i, n := range []int{100, 40_000} {
		res, err := (&http.Client{Transport: client}).Post("http://api.example.com/v1/responses", "text/plain", strings.NewReader(strings.Repeat("x", n)+endOfBody))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || len(got) != 20*len("data: x\n\n") {
			t.Errorf("request %d of %d bytes: %d bytes came, %v", i, n, len(got), err)
		}
	}
}
