package proxy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

// A piece of a chunk waits for the rest of its chunk, by net/http's reader of
// chunks: nobody who sends events does that.
func TestWhatComesIsPassedOnAtOnce(t *testing.T) {
	for name, c := range map[string]struct{ head, first, rest string }{
		"events in chunks":       {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", "7\r\ndata: 1\r\n", "7\r\ndata: 2\r\n0\r\n\r\n"},
		"a chunk without an end": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "7\r\ndata: 1\r", "\n7\r\ndata: 2\r\n0\r\n\r\n"},
		"half a length":          {"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n", "data: 1", "data: 2"},
		"until it closes":        {"HTTP/1.1 200 OK\r\n\r\n", "data: 1", "data: 2"},
	} {
		t.Run(name, func(t *testing.T) {
			next, over := make(chan bool), t.Context()
			each(t, scripted(func(conn *net.TCPConn, r *bufio.Reader) {
				if _, err := http.ReadRequest(r); err != nil {
					return
				}
				for _, s := range []string{c.head, c.first, c.rest} { // each when the one before has arrived
					_, _ = io.WriteString(conn, s)
					if s == c.rest {
						return
					}
					select {
					case <-next:
					case <-over.Done():
						return
					}
				}
			}), func(t *testing.T, b *between) {
				k := b.talk(t)
				k.say(get(api, "/"))
				res := k.head("GET")
				next <- true
				got := make([]byte, 7)
				if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "data: 1" {
					t.Fatalf("%q, %v", got, err)
				}
				next <- true
				rest, err := io.ReadAll(res.Body)
				if err != nil || string(rest) != "data: 2" {
					t.Fatalf("%q, %v", rest, err)
				}
			})
		})
	}
}

func TestInterimAnswers(t *testing.T) {
	each(t, handled(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusProcessing)
		w.Header().Del("Link")
		echo(w, r)
	}), func(t *testing.T, b *between) {
		k := b.talk(t)
		for range 2 {
			k.say(get(api, "/"))
			if res := k.head("GET"); res.StatusCode != http.StatusEarlyHints || res.Header.Get("Link") == "" {
				t.Fatalf("%s %v", res.Status, res.Header)
			}
			if res := k.head("GET"); res.StatusCode != http.StatusProcessing {
				t.Fatalf("%s", res.Status)
			}
			k.want("GET", 200, "GET api.example.com / ")
		}
	})
}

// Of a request they end here, as httputil.ReverseProxy has it: its body arrives.
func TestTrailersOfAnswersArePassedOn(t *testing.T) {
	each(t, handled(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.Copy(w, r.Body)
		_, _ = io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "sum")
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
	}), func(t *testing.T, b *between) {
		k := b.talk(t)
		k.say(get(api, "/"))
		res := k.want("GET", 200, "body")
		if res.Trailer.Get("X-Sum") != "sum" || res.Trailer.Get("X-Late") != "late" {
			t.Errorf("%v", res.Trailer)
		}
		k.say("PUT http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nTrailer: X-Asked\r\n\r\n4\r\nsome\r\n0\r\nX-Asked: 1\r\n\r\n")
		if res := k.want("PUT", 200, "somebody"); res.Trailer.Get("X-Sum") != "sum" {
			t.Errorf("%v", res.Trailer)
		}
		k.say(get(api, "/"))
		k.want("GET", 200, "body")
	})
}

func TestSwitchingToWebSocketAfterPlainRequests(t *testing.T) {
	each(t, handled(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			echo(w, r)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(c, "you said "+line)
	}), func(t *testing.T, b *between) {
		k := b.talk(t)
		k.say(get(api, "/"))
		k.want("GET", 200, "GET api.example.com / ")
		k.say("GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		if res := k.head("GET"); res.StatusCode != 101 {
			t.Fatalf("%s", res.Status)
		}
		k.say("hello\n")
		if line, err := k.r.ReadString('\n'); line != "you said hello\n" {
			t.Errorf("%q, %v", line, err)
		}
	})
}

func TestABodyThatIsAskedForAndOneThatIsNot(t *testing.T) {
	each(t, handled(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" { // an answer while the body is still on its way
			w.WriteHeader(http.StatusForbidden)
			_ = http.NewResponseController(w).Flush()
			return
		}
		echo(w, r)
	}), func(t *testing.T, b *between) {
		k := b.talk(t)
		k.say(get(api, "/"))
		k.want("GET", 200, "GET api.example.com / ")
		k.say("POST http://api.example.com/asked HTTP/1.1\r\nHost: api.example.com\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
		if res := k.head("POST"); res.StatusCode != 100 {
			t.Fatalf("%s", res.Status)
		}
		k.say("body")
		k.want("POST", 200, "POST api.example.com /asked body")
		k.say("POST http://api.example.com/early HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 10000000\r\n\r\nsome")
		var work sync.WaitGroup
		defer work.Wait()
		work.Go(func() { // until nobody reads it any more
			for range 100 {
				if _, err := k.Write(make([]byte, 100_000)); err != nil {
					return
				}
			}
		})
		if res := k.head("POST"); res.StatusCode != http.StatusForbidden {
			t.Fatalf("%s", res.Status)
		}
	})
}

func TestASlowReaderGetsEveryByte(t *testing.T) {
	block := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	const blocks = 16
	each(t, handled(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", fmt.Sprint(blocks*len(block)))
		}
		for range blocks {
			_, _ = w.Write(block)
		}
	}), func(t *testing.T, b *between) {
		k := b.talk(t)
		_ = k.SetReadBuffer(32 << 10)
		for _, path := range []string{"/length", "/chunks"} {
			k.say(get(api, path))
			res := k.head("GET")
			sum, want := sha256.New(), sha256.New()
			n, err := io.CopyBuffer(sum, struct{ io.Reader }{res.Body}, make([]byte, 7777))
			for range blocks {
				_, _ = want.Write(block)
			}
			if err != nil || n != int64(blocks*len(block)) || !bytes.Equal(sum.Sum(nil), want.Sum(nil)) {
				t.Fatalf("%s: %d bytes, %v", path, n, err)
			}
		}
	})
}

func TestAnAnswerThatBreaksOffIsNotMadeWhole(t *testing.T) {
	for name, says := range map[string]string{
		"a length": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		"chunks":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"a chunk":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
		"no chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			each(t, scripted(func(c *net.TCPConn, r *bufio.Reader) {
				if _, err := http.ReadRequest(r); err == nil {
					_, _ = io.WriteString(c, says)
				}
			}), func(t *testing.T, b *between) {
				k := b.talk(t)
				k.say(get(api, "/"))
				res, err := http.ReadResponse(k.r, nil)
				if err != nil {
					return // nothing of it came
				}
				if got, err := io.ReadAll(res.Body); err == nil {
					t.Errorf("%q came as if it were all", got)
				}
			})
		})
	}
}

func TestAClientThatLeavesCallsItsRequestOff(t *testing.T) {
	for name, says := range map[string]string{"before the answer": "", "in the answer": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"} {
		t.Run(name, func(t *testing.T) {
			asked, left := make(chan bool, 1), make(chan error, 1)
			each(t, scripted(func(c *net.TCPConn, r *bufio.Reader) {
				q, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				if q.URL.Path == "/first" {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					if _, err = http.ReadRequest(r); err != nil {
						return
					}
				}
				_, _ = io.WriteString(c, says)
				asked <- true
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
				_, err = r.ReadByte()
				left <- err
			}), func(t *testing.T, b *between) {
				for _, before := range []string{"", get(api, "/first")} { // by a new connection, and by a kept one
					k := b.talk(t)
					if before != "" {
						k.say(before)
						k.want("GET", 200, "")
					}
					k.say(get(api, "/"))
					<-asked
					_ = k.Close()
					if err := <-left; err == nil || strings.Contains(err.Error(), "timeout") {
						t.Errorf("the server heard %v", err)
					}
				}
			})
		})
	}
}

func TestOldAndEndingClients(t *testing.T) {
	each(t, handled(echo), func(t *testing.T, b *between) {
		for name, says := range map[string]string{
			"HTTP/1.0":          "GET http://api.example.com/ HTTP/1.0\r\n\r\n",
			"Connection: close": "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nConnection: Close\r\n\r\n",
		} {
			k := b.talk(t)
			k.say(get(api, "/"))
			k.want("GET", 200, "GET api.example.com / ")
			k.say(says)
			if res := k.want("GET", 200, "GET api.example.com / "); !res.Close {
				t.Errorf("%s: the answer does not say that it is the last", name)
			}
			k.ended()
		}
		k := b.talk(t)
		for range 2 {
			k.say("GET http://api.example.com/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
			k.want("GET", 200, "GET api.example.com / ")
		}
	})
}

func TestDenialsBetweenPlainRequests(t *testing.T) {
	each(t, handled(echo), func(t *testing.T, b *between) {
		k := b.talk(t)
		for range 2 {
			k.say(get(api, "/"))
			k.want("GET", 200, "GET api.example.com / ")
			k.say(get("evil.example", "/"))
			if res, body := k.hear("GET"); res.StatusCode != 403 || res.Header.Get(DeniedHeader) != string(deny.NotListed) || !strings.Contains(body, "evil.example") {
				t.Fatalf("%s %v %s", res.Status, res.Header, body)
			}
		}
	})
}

func TestAFarSideThatIsNotThere(t *testing.T) {
	each(t, func(t *testing.T) net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = ln.Close()
		return ln
	}, func(t *testing.T, b *between) {
		k := b.talk(t)
		for range 2 {
			k.say(get(api, "/"))
			if res, body := k.hear("GET"); res.StatusCode != 502 || res.Header.Get(DeniedHeader) != string(deny.Unreachable) || !strings.Contains(body, "refused") {
				t.Fatalf("%s %v %s", res.Status, res.Header, body)
			}
			k.say("HEAD" + get(api, "/")[3:])
			if res := k.want("HEAD", 502, ""); res.Header.Get(DeniedHeader) != string(deny.Unreachable) {
				t.Fatalf("%v", res.Header)
			}
		}
	})
}
