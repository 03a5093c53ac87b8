package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"bulkhead/internal/plain"
)

// TestALineInPiecesIsARequestAllTheSame: a control character does not make a
// line pass whose end makes a request of it.
func TestALineInPiecesIsARequestAllTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		pieces []string
		heard  string // by the far side, in all
	}{
		"a request in two":                  {[]string{"GET /\x01", " HTTP/1.1\r\nHost: evil.example\r\n\r\n"}, "GET /\x01"},
		"a request in many":                 {[]string{"GET /\x00", "x H", "T", "tP", "/1.1\r\nHost: evil.example\r\n\r\n"}, "GET /\x00x HTtP"},
		"a request in two, in its version":  {[]string{"GET /\x01 HTT", "P/1.1\r\nHost: evil.example\r\n\r\n"}, "GET /\x01 HTT"},
		"a request after empty lines":       {[]string{"\r\n X \x02", " HTTP/1.1\r\nHost: evil.example\r\n\r\n"}, "\r\n X \x02"},
		"git":                               {[]string{"0032git-upload-pack /project.git\x00host=x\x00", "0000", "HTTP\n"}, "0032git-upload-pack /project.git\x00host=x\x000000HTTP\n"},
		"git, and what looks like it later": {[]string{"0032git-upload-pack /project.git\x00host=x\x00", "0009done\nHTTP/1.1\n"}, "0032git-upload-pack /project.git\x00host=x\x000009done\nHTTP/1.1\n"},
		"a binary protocol":                 {[]string{"AMQP\x00 \x00\x09\x01", "HTTP/1.1"}, "AMQP\x00 \x00\x09\x01HTTP/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			heard, whole := make(chan int), make(chan string, 1)
			far := scripted(func(conn *net.TCPConn, _ *bufio.Reader) {
				var all strings.Builder
				b := make([]byte, 256)
				for {
					n, err := conn.Read(b)
					all.Write(b[:n])
					if err != nil {
						whole <- all.String()
						return
					}
					heard <- n
				}
			})(t)
			b := put(t, far, false)
			k := b.talk(t)
			k.say("CONNECT api.example.com:9418 HTTP/1.1\r\nHost: api.example.com:9418\r\n\r\n")
			k.head("CONNECT")
			left := len(c.heard)
			for _, piece := range c.pieces { // each when the one before has arrived
				k.say(piece)
				for want := max(0, left-len(piece)); left > want; {
					n := <-heard
					left -= n
				}
				if left == 0 {
					break
				}
			}
			if last := c.pieces[len(c.pieces)-1]; !strings.HasSuffix(c.heard, last) {
				k.say(last)
			}
			_ = k.CloseWrite()
			go func() {
				for range heard { // more than there should be
				}
			}()
			defer close(heard)
			if got := <-whole; got != c.heard {
				t.Errorf("the far side heard %q, want %q", got, c.heard)
			}
			_, _ = io.Copy(io.Discard, k.r)
		})
	}
}

// FuzzFirstLineInPieces sends a line in two pieces: as long as something like a
// method begins it, nothing passes as another protocol that has a version of
// HTTP in it.
func FuzzFirstLineInPieces(f *testing.F) {
	f.Add("GET", "/\x01 HTTP/1.1\r\nHost: evil.example\r\n\r\n", 6)
	f.Add("GET", "/\x01 HTTP/1.1\n", 10)
	f.Add("0032git-upload-pack", "/project.git\x00host=x\x00", 30)
	f.Add("X", "\x0b\xa0\x02HtTp/", 3)
	f.Fuzz(func(t *testing.T, method, rest string, at int) {
		for i := range len(method) {
			if !plain.Token(method[i]) {
				return
			}
		}
		text := method + " " + rest
		if method == "" || at <= len(method) || at >= len(text) {
			return
		}
		c := said{client(t, nil), io.MultiReader(strings.NewReader(text[:at]), strings.NewReader(text[at:]))}
		first, kind, reason := firstBytes(c, nil, asked("api.example.com", 80))
		if kind != kindOther || reason != nil {
			return
		}
		var out bytes.Buffer
		_, _ = out.Write(first)
		if !mayBecome(first) || restOfLine(&out, c, first) {
			_, _ = io.Copy(&out, c)
		}
		line, _, _ := bytes.Cut(out.Bytes(), []byte("\n"))
		if bytes.Contains(bytes.ToUpper(line), version) {
			t.Fatalf("%q then %q passed", text[:at], text[at:])
		}
	})
}
