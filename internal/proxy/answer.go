package proxy

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// none is the length of an answer that says nothing about one.
const none = -2

// hopByHop are the fields of an answer that end here (RFC 9110, 7.6.1).
var hopByHop = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// framing are the fields that are written anew.
var framing = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Trailer": true, "Connection": true}

// removeHopByHop removes what ends here, what the far side says does, and what
// only the gateway says.
func removeHopByHop(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
	delete(h, DeniedHeader)
}

// start writes the head of an answer. length is its body's; -1 is unknown, and
// then the body goes in chunks.
func (x *exchange) start(status int, h http.Header, length int64, trailer http.Header) error {
	x.statusLine(status)
	if err := h.WriteSubset(x.out, framing); err != nil {
		return err
	}
	var number [64]byte
	if _, ok := h["Date"]; !ok {
		x.field("Date: ", time.Now().UTC().AppendFormat(number[:0], http.TimeFormat))
	}
	switch {
	case length >= 0:
		x.field("Content-Length: ", strconv.AppendInt(number[:0], length, 10))
	case length != none:
		x.field("Transfer-Encoding: ", []byte("chunked"))
		for name := range trailer {
			x.field("Trailer: ", []byte(name))
		}
	}
	if x.r.Close {
		x.field("Connection: ", []byte("close"))
	}
	_, err := x.out.Write(crlf)
	return err
}

// interim passes an answer on that is not the final one (RFC 9110, 15.2).
func (x *exchange) interim(res *http.Response) error {
	removeHopByHop(res.Header)
	x.statusLine(res.StatusCode)
	if err := res.Header.WriteSubset(x.out, framing); err != nil {
		return err
	}
	_, _ = x.out.Write(crlf)
	return x.out.Flush()
}

func (x *exchange) statusLine(status int) {
	var number [8]byte
	_, _ = x.out.WriteString("HTTP/1.1 ")
	_, _ = x.out.Write(strconv.AppendInt(number[:0], int64(status), 10))
	_ = x.out.WriteByte(' ')
	_, _ = x.out.WriteString(http.StatusText(status))
	_, _ = x.out.Write(crlf)
}

func (x *exchange) field(name string, value []byte) {
	_, _ = x.out.WriteString(name)
	_, _ = x.out.Write(value)
	_, _ = x.out.Write(crlf)
}

// trailer ends a body of chunks.
func (x *exchange) trailer(h http.Header) error {
	_, _ = x.out.WriteString("0\r\n")
	removeHopByHop(h)
	if err := h.WriteSubset(x.out, framing); err != nil {
		return err
	}
	_, err := x.out.Write(crlf)
	return err
}

// chunks writes each piece as a chunk (RFC 9112, 7.1). Pieces are not empty.
type chunks struct{ w *bufio.Writer }

// Write writes one chunk.
func (c chunks) Write(b []byte) (int, error) {
	_, _ = fmt.Fprintf(c.w, "%x\r\n", len(b))
	n, err := c.w.Write(b)
	if err == nil {
		_, err = c.w.Write(crlf)
	}
	return n, err
}
