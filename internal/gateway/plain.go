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
	"strings"
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
	last  known
	body  plainBody // of the request at work
}

// known is the last head of a connection that was understood. The next one is
// mostly the same but for the digits of its length, and means the same then.
type known struct {
	before, after []byte // the digits
	r             *http.Request
	serve         http.HandlerFunc
}

// understood gives the request that head is, until the next one is asked for.
func (c *plainConn) understood(head []byte) (*http.Request, http.HandlerFunc) {
	k := &c.last
	if k.r == nil || !k.again(head) {
		k.r, k.serve = c.s.understood(head)
		if k.r == nil {
			return nil, nil
		}
		from, to := plain.Length(head)
		k.before, k.after = append(k.before[:0], head[:from]...), append(k.after[:0], head[to:]...)
	}
	return k.r, k.serve
}

// again makes r what head is, when that is the last one but for its length.
func (k *known) again(head []byte) bool {
	digits, ok := bytes.CutPrefix(head, k.before)
	if !ok {
		return false
	}
	if digits, ok = bytes.CutSuffix(digits, k.after); !ok {
		return false
	}
	n, ok := plain.Digits(digits)
	if !ok || n > maxPlain {
		return false
	}
	if n != k.r.ContentLength || len(k.r.Header["Content-Length"][0]) != len(digits) {
		k.r.ContentLength, k.r.Header["Content-Length"] = n, []string{string(digits)}
	}
	return true
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
	begun := func() {
		if !timed {
			timed = true
			c.head()
		}
	}
	for {
		var end int
		if n, end, err = plain.Head(b, n, plain.MayPost, begun, c.Conn.Read); err != nil {
			return n, err
		}
		r, serve := c.understood(b[:end])
		if r == nil {
			begun()
			return n, nil
		}
		if timed || int64(n-end) < r.ContentLength {
			c.idle() // what was left of the time to begin is none for the body
		}
		here := end + int(min(int64(n-end), r.ContentLength))
		c.body = plainBody{from: c.Conn, here: b[end:here], more: r.ContentLength - int64(here-end)}
		r.Body = &c.body
		given, err := answerPlain(c.Conn, r, serve, &c.body)
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

// plainAnswer is what a handler answers, and the response that is made of it.
type plainAnswer struct {
	header http.Header
	status int
	body   []byte
	out    bytes.Buffer
	from   *plainBody
	conn   net.Conn
	given  []byte // the request's body, when it is net/http's to serve after all
	kept   bool   // somebody else may have it still: it is not used again
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

var answers = sync.Pool{New: func() any { return &plainAnswer{header: make(http.Header, 8)} }}

// maxAnswer is the largest body whose memory is kept for the next one.
const maxAnswer = 64 << 10

// release gives the answer back.
func (a *plainAnswer) release() {
	if a.kept || cap(a.body) > maxAnswer {
		return
	}
	clear(a.header)
	a.status, a.body, a.from, a.conn, a.given = 0, a.body[:0], nil, nil, nil
	a.out.Reset()
	answers.Put(a)
}

// fields writes the header as http.Header.Write does, which sorts it.
func (a *plainAnswer) fields() error {
	for _, values := range a.header {
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n") {
				return a.header.Write(&a.out)
			}
		}
	}
	for name, values := range a.header {
		for _, v := range values {
			a.out.WriteString(name)
			a.out.WriteString(": ")
			a.out.WriteString(v)
			a.out.WriteString("\r\n")
		}
	}
	return nil
}

// answerPlain has a request served and writes the response with one call. An
// error means that the connection is at its end; a body, that it was not served.
func answerPlain(c net.Conn, r *http.Request, serve http.HandlerFunc, body *plainBody) (given []byte, err error) {
	a := answers.Get().(*plainAnswer)
	defer a.release()
	a.from, a.conn = body, c
	serve(a, r)
	if a.given != nil {
		return a.given, nil
	}
	a.WriteHeader(http.StatusOK)
	end := r.Close || body.more > 0 // what was not read is no next request
	out := &a.out
	out.WriteString("HTTP/1.1 ")
	out.WriteString(strconv.Itoa(a.status))
	out.WriteByte(' ')
	out.WriteString(http.StatusText(a.status))
	out.WriteString("\r\n")
	delete(a.header, "Content-Length") // a handler's own says the same
	if end {
		a.header.Set("Connection", "close")
	}
	if err := a.fields(); err != nil {
		return nil, err
	}
	out.WriteString("Content-Length: ")
	out.WriteString(strconv.Itoa(len(a.body)))
	out.WriteString("\r\n")
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
