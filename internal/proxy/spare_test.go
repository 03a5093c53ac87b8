package proxy

import (
	"bufio"
	"io"
	"net"
	"testing"

	"bulkhead/internal/deny"
)

// TestWhatWasDialledForATunnelEndsWithItsClient although no request took it: a
// client could leave one behind for each name below a listed suffix otherwise.
func TestWhatWasDialledForATunnelEndsWithItsClient(t *testing.T) {
	for name, c := range map[string]struct{ says, code string }{
		"half a request":   {"GET / HTTP/1.1\r\n", ""},
		"a denied request": {"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", string(deny.NameMismatch)},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			each(t, scripted(func(conn *net.TCPConn, r *bufio.Reader) {
				_, err := r.ReadByte()
				ended <- err
			}), func(t *testing.T, b *between) {
				k := b.talk(t)
				k.say("CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n")
				k.head("CONNECT")
				k.say(c.says)
				if c.code != "" {
					if res, _ := k.hear("GET"); res.Header.Get(DeniedHeader) != c.code {
						t.Fatalf("%s %v", res.Status, res.Header)
					}
				}
				_ = k.Close()
				wait(t, ended, io.EOF)
			})
		})
	}
}

// TestWhatWasDialledForATunnelIsUsedOnlyAsItShouldBe has a far side that ends
// the first connection, or says something, before the first request.
func TestWhatWasDialledForATunnelIsUsedOnlyAsItShouldBe(t *testing.T) {
	for name, says := range map[string]string{"it ended": "", "it spoke": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"GET", "POST"} {
				first, now, did := make(chan bool, 1), make(chan bool), make(chan error, 1)
				first <- true
				b := put(t, scripted(func(conn *net.TCPConn, r *bufio.Reader) {
					select {
					case <-first:
						<-now
						_, err := io.WriteString(conn, says)
						if says == "" {
							err = conn.CloseWrite()
						}
						did <- err
					default:
						if _, err := r.ReadString('\n'); err == nil {
							_, _ = io.WriteString(conn, ok)
						}
					}
					_, _ = io.Copy(io.Discard, r)
				})(t), false)
				k := b.talk(t)
				k.say("CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n")
				k.head("CONNECT")
				k.say("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
				k.hear("GET")
				now <- true
				wait(t, did, nil)
				k.say(method + " / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
				k.want(method, 200, "ok")
				_ = k.Close()
			}
		})
	}
}
