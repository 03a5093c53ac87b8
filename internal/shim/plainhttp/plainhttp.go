// Package plainhttp is as much HTTP/1.1 as the shim needs: one request on one
// connection, to the agent's gateway or to a port of the runtime's own
// loopback. The shim is PID 1 of every runtime and links no net/http.
//
// The answer ends with its Content-Length or with the connection; a chunked one
// is refused when its body is wanted. Nothing is followed, kept or retried.
package plainhttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// MaxAnswer bounds the body of an answer: a hundred messages of 1 MiB.
const MaxAnswer = 128 << 20

// maxHead bounds the head of an answer.
const maxHead = 64 << 10

// Request is one request. Header fields are name and value in turn.
type Request struct {
	Method, Path, Host string
	Header             []string
	Body               []byte
}

// Answer is what came. Head only: Body is nil.
type Answer struct {
	Status int
	Header textproto.MIMEHeader
	Body   []byte
}

// Do sends a request to an address of the network "unix" or "tcp". head says
// that the body of the answer is not wanted. Errors before anything was sent
// wrap a *net.OpError of the op "dial".
func Do(ctx context.Context, network, address string, q Request, head bool) (Answer, error) {
	text, err := q.encode()
	if err != nil {
		return Answer{}, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	a, err := exchange(c, text, head)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return a, err
}

func (q *Request) encode() ([]byte, error) {
	var b strings.Builder
	line := func(parts ...string) error {
		for _, p := range parts {
			if strings.ContainsAny(p, "\r\n\x00") {
				return fmt.Errorf("http: %.40q has the end of a line in it", p)
			}
			b.WriteString(p)
		}
		b.WriteString("\r\n")
		return nil
	}
	if strings.ContainsAny(q.Path+q.Method, " \t") {
		return nil, fmt.Errorf("http: %.40q has a space in it", q.Method+q.Path)
	}
	err := line(q.Method, " ", q.Path, " HTTP/1.1")
	err = errors.Join(err, line("Host: ", q.Host), line("Connection: close"), line("Content-Length: ", strconv.Itoa(len(q.Body))))
	for i := 0; i+1 < len(q.Header); i += 2 {
		err = errors.Join(err, line(q.Header[i], ": ", q.Header[i+1]))
	}
	b.WriteString("\r\n")
	return append([]byte(b.String()), q.Body...), err
}

func exchange(c net.Conn, text []byte, head bool) (Answer, error) {
	// A server may answer, and close, before it has read everything: 413. Its
	// answer says more than the failed write.
	_, werr := c.Write(text)
	a, err := Read(c, head)
	if err != nil && werr != nil {
		err = werr
	}
	return a, err
}

// Read reads one answer; those with a status below 200 come before it.
func Read(from io.Reader, head bool) (Answer, error) {
	limit := &io.LimitedReader{R: from, N: maxHead}
	r := bufio.NewReader(limit)
	var a Answer
	for a.Status < 200 {
		t := textproto.NewReader(r)
		line, err := t.ReadLine()
		if err != nil {
			return a, fmt.Errorf("http: no answer: %w", err)
		}
		if a.Status, err = status(line); err != nil {
			return a, err
		}
		if a.Header, err = t.ReadMIMEHeader(); err != nil {
			return a, fmt.Errorf("http: the answer's head: %w", err)
		}
		if a.Status == 101 {
			return a, errors.New("http: the server switched protocols unasked")
		}
	}
	if head {
		return a, nil
	}
	if a.Header.Get("Transfer-Encoding") != "" {
		return a, errors.New("http: the answer is chunked, which is not understood here")
	}
	n := int64(-1)
	if text := a.Header.Get("Content-Length"); text != "" {
		u, err := strconv.ParseUint(text, 10, 62)
		if err != nil || u > MaxAnswer {
			return a, fmt.Errorf("http: Content-Length %.40q is not one up to %d", text, MaxAnswer)
		}
		n = int64(u) // #nosec G115 -- 62 bits
	}
	limit.N = MaxAnswer + maxHead
	var err error
	if n < 0 {
		a.Body, err = io.ReadAll(r)
	} else if a.Body, err = io.ReadAll(io.LimitReader(r, n)); err == nil && int64(len(a.Body)) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return a, fmt.Errorf("http: the answer's body: %w", err)
	}
	return a, nil
}

func status(line string) (int, error) {
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(code)
	if err != nil || len(code) != 3 || n < 100 || version != "HTTP/1.1" && version != "HTTP/1.0" {
		return 0, fmt.Errorf("http: the answer does not begin with a status: %.40q", line)
	}
	return n, nil
}
