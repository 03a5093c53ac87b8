package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/plain"
)

type kind int

// What a client's first bytes are.
const (
	kindOther kind = iota
	kindTLS
	kindHTTP
)

// maxFirst bounds what is read of a client before it is judged: one TLS
// ClientHello (RFC 8446 allows 64 KiB) or one HTTP request line.
const maxFirst = 68 << 10

// firstBytes reads as much of the client's first bytes as it takes to judge them,
// and judges them. A client that says nothing is waited for: its server may
// speak first.
func firstBytes(c net.Conn, early []byte, t target) ([]byte, kind, *deny.Reason) {
	if !t.byName() {
		return early, kindOther, nil
	}
	b := early
	if len(b) == 0 {
		b = make([]byte, 4096)
		n, _ := c.Read(b)
		if b = b[:n]; n == 0 {
			return nil, kindOther, nil // it wants to hear only, or is gone: nothing goes out
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(firstTimeout))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	if b[0] == recordHandshake {
		rec := &recorder{Conn: c, seen: b}
		h, err := readHello(rec)
		return rec.seen, kindTLS, judgeHello(h, err, t)
	}
	if t.port == 443 {
		return b, kindOther, notTLS(t)
	}
	for {
		odd, enough := oddHello(b)
		if odd {
			return b, kindTLS, judgeHello(hello{}, errOddHello, t)
		}
		if enough {
			var is bool
			if is, enough = requestLine(b); is {
				return b, kindHTTP, nil // each request is judged by itself
			}
		}
		if enough {
			return b, kindOther, nil
		}
		if len(b) >= maxFirst {
			return b, kindOther, tooLong(t)
		}
		more := make([]byte, 4096)
		n, err := c.Read(more)
		b = append(b, more[:n]...)
		if err != nil && n == 0 {
			if errors.Is(err, io.EOF) {
				if is, _ := requestLine(append(b, '\n')); is {
					return b, kindHTTP, nil // some take the end for a line's
				}
				return b, kindOther, nil // it cannot become a request any more
			}
			return b, kindOther, tooLong(t)
		}
	}
}

// requestLine says whether b begins with an HTTP request line (RFC 9112, 3:
// method SP target SP HTTP-version; leading empty lines are allowed, 2.2), and
// whether b is enough to tell. A line that a lenient server could take for one
// is one: some skip white space before the method or take any kind of it
// between the parts (Python's http.server splits at whatever Unicode calls
// white space), and some answer a line without a version, as of HTTP/0.9, for
// the host in its absolute target.
func requestLine(b []byte) (is, enough bool) {
	for len(b) > 0 && (white(b[0]) || b[0] == '\n') {
		b = b[1:]
	}
	if len(b) == 0 {
		return false, false
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	if bytes.Contains(bytes.ToUpper(line), version) {
		return true, true
	}
	// Nothing but a method is before the first white space, and a control
	// character after it is in no request of a client that means well: git's
	// first packet has a NUL and no newline, for example. Such a line is not
	// waited for, but becomes may follow it.
	if !plain.Token(line[0]) {
		return false, true
	}
	spaced := false
	for _, ch := range line {
		if spaced = spaced || white(ch); ch < ' ' && !white(ch) && (!spaced || !whole) {
			return false, true
		}
	}
	if !whole {
		return false, false
	}
	parts := fields(line)
	return len(parts) > 1 && (parts[1][0] == '/' || bytes.Contains(parts[1], []byte("://"))), true
}

// fields gives what is between white bytes; bytes.FieldsFunc would take a line
// for UTF-8 and miss those above ASCII.
func fields(line []byte) (parts [][]byte) {
	for len(line) > 0 {
		n := 0
		for n < len(line) && !white(line[n]) {
			n++
		}
		if n > 0 {
			parts = append(parts, line[:n])
		}
		line = line[min(n+1, len(line)):]
	}
	return parts
}

// white says whether a lenient server may skip ch as white space.
func white(ch byte) bool {
	return ch == ' ' || ch >= '\t' && ch <= '\r' && ch != '\n' || ch >= 0x1c && ch <= 0x1f || ch == 0x85 || ch == 0xa0
}

func judgeHello(h hello, err error, t target) *deny.Reason {
	switch {
	case err != nil:
		return &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NoServerName, What: t.String(), Why: "it begins like TLS but holds no readable ClientHello: " + err.Error(),
			Mend: "speak TLS 1.2 or 1.3, or mark the destination with `sni: any` in bulkhead.yaml",
		}
	case h.encrypted:
		return &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NoServerName, What: t.String(), Why: "the ClientHello is encrypted (ECH), so the name inside cannot be checked",
			Mend: "turn ECH off in the client, or mark the destination with `sni: any` in bulkhead.yaml",
		}
	case h.name == "":
		return &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NoServerName, What: t.String(), Why: "the ClientHello names no server",
			Mend: "let the client send SNI, or mark the destination with `sni: any` in bulkhead.yaml",
		}
	}
	if n, err := dial.Normalise(h.name); err != nil || n != t.host {
		return mismatch(t, "TLS server name", h.name)
	}
	return nil
}

func mismatch(t target, what, got string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.NameMismatch, What: t.String(), Why: fmt.Sprintf("%s is %.100q, but %s was asked for", what, got, t),
		Mend: "ask for the name that is meant, and list it; or mark the destination with `sni: any` in bulkhead.yaml",
	}
}

func notTLS(t target) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.NoServerName, What: t.String(), Why: "port 443 is for TLS, and this is not TLS",
		Mend: "use TLS, or mark the destination with `sni: any` in bulkhead.yaml",
	}
}

func tooLong(t target) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.BadTarget, What: t.String(), Why: "the first line is too long, or did not end in time",
		Mend: "mark the destination with `sni: any` in bulkhead.yaml if this is no HTTP",
	}
}
