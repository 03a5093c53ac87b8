package proxy

import (
	"bytes"
	"io"

	"bulkhead/internal/deny"
	"bulkhead/internal/plain"
)

// mayBecome says whether b, which was judged to be no HTTP because of a control
// character, is half of a line that a server could still take for a request:
// some take any byte in a target, and a client can send a line in two pieces.
func mayBecome(b []byte) bool {
	for len(b) > 0 && (white(b[0]) || b[0] == '\n') {
		b = b[1:]
	}
	if len(b) == 0 || bytes.IndexByte(b, '\n') >= 0 {
		return false
	}
	for i, ch := range b {
		if white(ch) {
			return i > 0
		}
		if !plain.Token(ch) {
			return false
		}
	}
	return false
}

// restOfLine passes what follows such a beginning on, as it comes. false means
// that it has become an HTTP request line, whose end was not passed on.
func restOfLine(to io.Writer, from io.Reader, begun []byte) bool {
	b := append(make([]byte, 0, 4096), begun[max(0, len(begun)-len(version)+1):]...)
	for sent := 0; sent < maxFirst; {
		at := len(b)
		n, err := from.Read(b[at:cap(b)])
		b = b[:at+n]
		line, _, whole := bytes.Cut(b, []byte("\n"))
		if bytes.Contains(bytes.ToUpper(line), version) {
			return false
		}
		if n > 0 {
			if _, werr := to.Write(b[at:]); werr != nil {
				return true
			}
		}
		if whole || err != nil {
			return true
		}
		sent += n
		b = b[:copy(b, b[max(0, len(b)-len(version)+1):])] // it can come in pieces
	}
	return true
}

// version is what each request line since HTTP/1.0 has.
var version = []byte("HTTP/")

func became(t target) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerEgress, Code: deny.NameMismatch, What: t.String(), Why: "its first line began as no HTTP does, with a control character, and became an HTTP request",
		Mend: "send requests without control characters, or mark the destination with `sni: any` in bulkhead.yaml",
	}
}
