package dialer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Bounds of what a proxy says before it connects. Real answers have a few
// hundred bytes; Squid's page of a refusal follows the header and is not read.
const (
	maxAnswer = 16 << 10
	maxStatus = 200 // of the status line, in a reason
)

// answer is a proxy's answer to CONNECT.
type answer struct {
	code   int
	status string // "403 Forbidden": printable ASCII, at most maxStatus bytes
	early  []byte // of the destination, which may speak first
}

// connected says whether the connection is now the destination's: any 2xx
// (RFC 9110, 9.3.6).
func (a answer) connected() bool { return a.code >= 200 && a.code < 300 }

var errAnswer = errors.New("what it answered is not HTTP")

// readAnswer reads the header of one answer, and what has come behind it. The
// fields say nothing that matters: after 2xx even Content-Length has no meaning
// (RFC 9110, 9.3.6). Interim answers (1xx) are skipped.
func readAnswer(r io.Reader) (answer, error) {
	buf := make([]byte, 0, 1024)
	for start := 0; ; {
		a, n, err := parseAnswer(buf[start:])
		switch {
		case err != nil:
			return answer{}, err
		case n > 0 && a.code >= 200:
			a.early = bytes.Clone(buf[start+n:])
			return a, nil
		case n > 0: // an interim answer counts within the same bound
			start += n
			continue
		case len(buf) >= maxAnswer:
			return answer{}, fmt.Errorf("%w: its header is longer than %d bytes", errAnswer, maxAnswer)
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, min(3*len(buf), maxAnswer-len(buf)))
		}
		n, err = r.Read(buf[len(buf):min(cap(buf), maxAnswer)])
		buf = buf[:len(buf)+n]
		switch {
		case n > 0 || err == nil:
		case errors.Is(err, io.EOF):
			return answer{}, fmt.Errorf("it closed the connection instead of answering: %w", io.ErrUnexpectedEOF)
		default:
			return answer{}, err
		}
	}
}

// parseAnswer reads the header at the beginning of b; n is its length, 0 while
// it is not whole. Lines may end in a bare LF (RFC 9112, 2.2).
func parseAnswer(b []byte) (a answer, n int, err error) {
	for line := 0; ; line++ {
		end := bytes.IndexByte(b[n:], '\n')
		if end < 0 {
			if line == 0 && !couldBeStatus(b) {
				return answer{}, 0, errAnswer
			}
			return answer{}, 0, nil
		}
		text := bytes.TrimSuffix(b[n:n+end], []byte("\r"))
		n += end + 1
		switch {
		case line == 0:
			if a, err = parseStatus(text); err != nil {
				return answer{}, 0, err
			}
		case len(text) == 0:
			return a, n, nil
		case text[0] != ' ' && text[0] != '\t' && bytes.IndexByte(text, ':') < 1: // folded lines are old, and say nothing here
			return answer{}, 0, fmt.Errorf("%w: %s", errAnswer, printable(text))
		}
	}
}

// couldBeStatus says whether b may become a status line, so that a service
// that is no proxy is told from one at once.
func couldBeStatus(b []byte) bool {
	const begin = "HTTP/1."
	return len(b) <= maxAnswer && bytes.HasPrefix([]byte(begin), b[:min(len(b), len(begin))])
}

// parseStatus reads "HTTP/1.1 200 Connection established" (RFC 9112, 4).
func parseStatus(line []byte) (answer, error) {
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.")) || !digit(line[7]) || line[8] != ' ' ||
		!digit(line[9]) || !digit(line[10]) || !digit(line[11]) || line[9] == '0' || len(line) > 12 && line[12] != ' ' {
		return answer{}, fmt.Errorf("%w: %s", errAnswer, printable(line))
	}
	code := int(line[9]-'0')*100 + int(line[10]-'0')*10 + int(line[11]-'0')
	return answer{code: code, status: printable(line[9:])}, nil
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// printable keeps a stranger's text short and harmless in a message.
func printable(b []byte) string {
	cut := b[:min(len(b), maxStatus)]
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, string(cut)))
}
