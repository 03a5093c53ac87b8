package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead/internal/plain"
	"bulkhead/internal/tooltoken"
)

// Times of a connection, the same for net/http's server.
const (
	headTimeout = 10 * time.Second
	idleTimeout = 5 * time.Minute
)

// maxPlain is the largest body that is served here: a batch of sixteen messages
// of 1 KiB has 18.
const maxPlain = 256 << 10

// plainServer serves on gateway.sock what is asked for often and answered soon:
// sends of messages (docs/decisions/0078), and calls of tools that wait for nobody
// (0089).
type plainServer struct {
	ctx      context.Context // ends with the server
	token    [sha256.Size]byte
	handlers map[string]http.HandlerFunc // by path; each answers as a whole, and at its end
}

func newPlain(ctx context.Context, token string, handlers map[string]http.HandlerFunc) *plainServer {
	return &plainServer{ctx: ctx, token: sha256.Sum256([]byte(tooltoken.Of(token))), handlers: handlers}
}

// understood gives the request that head is and who serves it, when it is a
// plain one with the tools' token. Another token, a wrong one included, is
// judged by authenticated.
func (s *plainServer) understood(head []byte) (*http.Request, http.HandlerFunc) {
	if len(head) == 0 {
		return nil, nil
	}
	r := plain.Post(head)
	if r == nil || r.ContentLength > maxPlain {
		return nil, nil
	}
	serve := s.handlers[r.RequestURI] // exactly: no query, nothing escaped
	if serve == nil || len(r.Header["Authorization"]) != 1 {
		return nil, nil
	}
	given := sha256.Sum256([]byte(shown(r)))
	if subtle.ConstantTimeCompare(given[:], s.token[:]) != 1 {
		return nil, nil
	}
	return r.WithContext(s.ctx), serve
}

// plainConn is a connection of the runtime, as net/http's server has it. Until
// its first request that is not plain it serves itself: the server waits in
// its first Read meanwhile, and hears of nothing but what is left to it. From
// then on the connection is net/http's, as in internal/proxy.
type plainConn struct {
	net.Conn
	s     *plainServer
	left  bool      // to net/http
	first []byte    // of what is left to it
	until time.Time // the read deadline, when it is that of an idle connection
}

// Read gives what is net/http's.
func (c *plainConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	if c.left {
		return c.Conn.Read(b)
	}
	c.left = true // nothing was given to anybody yet, so no request is at work
	return c.serve(b)
}

// serve answers plain requests, with b to read heads into, and gives what is not one.
func (c *plainConn) serve(b []byte) (n int, err error) {
	timed := true // the deadline is that of a request's head: the server has set it
	for {
		end := 0 // of the first head in b[:n], when all of it is here
		for {
			if i := bytes.Index(b[:n], []byte("\r\n\r\n")); i >= 0 {
				end = i + 4
				break
			}
			if n > 0 && !timed {
				timed = true
				c.head()
			}
			if n == len(b) || !plain.MayPost(b[:n]) {
				break
			}
			m, err := c.Conn.Read(b[n:])
			if n += m; err != nil {
				return n, err
			}
		}
		r, serve := c.s.understood(b[:end])
		if r == nil {
			if !timed {
				c.head()
			}
			return n, nil
		}
		if timed || int64(n-end) < r.ContentLength {
			c.idle() // what was left of the time to begin is none for the body
		}
		here := end + int(min(int64(n-end), r.ContentLength))
		body := &plainBody{from: c.Conn, here: b[end:here], more: r.ContentLength - int64(here-end)}
		r.Body = body
		given, err := answerPlain(c.Conn, r, serve, body)
		if err != nil {
			return 0, err
		}
		if given != nil {
			c.first = slices.Concat(b[:end], given, b[here:n])
			c.head()
			n = copy(b, c.first)
			c.first = c.first[n:]
			return n, nil
		}
		n = copy(b, b[here:n])
		timed = false
		c.idle()
	}
}

// head gives the rest of a head its time.
func (c *plainConn) head() {
	c.until = time.Time{}
	_ = c.SetReadDeadline(time.Now().Add(headTimeout))
}

// idle gives the next request its time, to a second: a deadline costs as much as
// the rest of what is done here.
func (c *plainConn) idle() {
	if until := time.Now().Add(idleTimeout); until.Sub(c.until) > time.Second {
		c.until = until
		_ = c.SetReadDeadline(until)
	}
}

// plainBody is the body of a request: what came with its head, and the rest.
type plainBody struct {
	from net.Conn
	here []byte
	more int64
}

// Read reads no byte beyond the body.
func (b *plainBody) Read(p []byte) (n int, err error) {
	if len(b.here) > 0 {
		n = copy(p, b.here)
		b.here = b.here[n:]
		return n, nil
	}
	if b.more == 0 {
		return 0, io.EOF
	}
	n, err = b.from.Read(p[:min(int64(len(p)), b.more)])
	if b.more -= int64(n); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close is the connection's.
func (b *plainBody) Close() error { return nil }

// plainAnswer is what a handler answers.
type plainAnswer struct {
	header http.Header
	status int
	body   []byte
	from   *plainBody
	conn   net.Conn
	given  []byte // the request's body, when it is net/http's to serve after all
}

// give leaves the request, whose whole body this is, to net/http: the handler
// answers nothing then.
func (a *plainAnswer) give(body []byte) { a.given = append([]byte{}, body...) }

// SetReadDeadline is for [http.ResponseController]: a body that is here needs none.
func (a *plainAnswer) SetReadDeadline(t time.Time) error {
	if a.from.more == 0 {
		return nil
	}
	return a.conn.SetReadDeadline(t)
}

// Header gives the fields.
func (a *plainAnswer) Header() http.Header { return a.header }

// WriteHeader sets the status, once.
func (a *plainAnswer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write adds to the body.
func (a *plainAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.body = append(a.body, b...)
	return len(b), nil
}

// answers are buffers that responses are written with.
var answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// answerPlain has a request served and writes the response with one call. An
// error means that the connection is at its end; a body, that it was not served.
func answerPlain(c net.Conn, r *http.Request, serve http.HandlerFunc, body *plainBody) (given []byte, err error) {
	a := plainAnswer{header: make(http.Header, 4), from: body, conn: c}
	serve(&a, r)
	if a.given != nil {
		return a.given, nil
	}
	a.WriteHeader(http.StatusOK)
	end := r.Close || body.more > 0 // what was not read is no next request
	out := answers.Get().(*bytes.Buffer)
	defer answers.Put(out)
	out.Reset()
	out.WriteString("HTTP/1.1 ")
	out.WriteString(strconv.Itoa(a.status))
	out.WriteByte(' ')
	out.WriteString(http.StatusText(a.status))
	out.WriteString("\r\n")
	a.header.Set("Content-Length", strconv.Itoa(len(a.body)))
	if end {
		a.header.Set("Connection", "close")
	}
	if err := a.header.Write(out); err != nil {
		return nil, err
	}
	out.WriteString("Date: ")
	out.WriteString(date(time.Now()))
	out.WriteString("\r\n\r\n")
	out.Write(a.body)
	if _, err := c.Write(out.Bytes()); err != nil {
		return nil, err
	}
	if out.Cap() > maxPlain {
		*out = bytes.Buffer{} // no pool keeps what one large answer took
	}
	if end {
		return nil, io.EOF
	}
	return nil, nil
}

// dated is the text of a second.
type dated struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dated]

// date gives the time as HTTP does, formatted once a second.
func date(now time.Time) string {
	d := lastDate.Load()
	if d == nil || d.second != now.Unix() {
		d = &dated{now.Unix(), now.UTC().Format(http.TimeFormat)}
		lastDate.Store(d)
	}
	return d.text
}
