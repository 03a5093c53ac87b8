package plainhttp

import (
	"bytes"
	"strings"
	"testing"
)

func TestAnswersThatAreNone(t *testing.T) {
	for text, why := range map[string]string{
		"": "no answer", "HTTP/2 200\r\n\r\n": "status", "HTTP/1.1 2000 x\r\n\r\n": "status", "HTTP/1.1 101 Switching\r\n\r\n": "switched",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n": "Content-Length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc": "unexpected EOF",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": "chunked", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 20_000): "head",
	} {
		if a, err := Read(strings.NewReader(text), false); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.60q: %+v, %v", text, a, err)
		}
	}
	a, err := Read(strings.NewReader("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}rest"), false)
	if err != nil || a.Status != 201 || string(a.Body) != "{}" {
		t.Errorf("%+v, %v", a, err)
	}
	for _, q := range []Request{{Method: "GET", Path: "/a b"}, {Method: "GET", Path: "/\r\nX: y"}, {Method: "GET", Path: "/", Header: []string{"A", "b\r\nC: d"}}} {
		if _, err := q.encode(); err == nil {
			t.Errorf("%+v was encoded", q)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := Read(bytes.NewReader(text), false)
		if err == nil && (a.Status < 200 || a.Status > 999 || len(a.Body) > len(text)) {
			t.Errorf("%+v", a)
		}
	})
}
