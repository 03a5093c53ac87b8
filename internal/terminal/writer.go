// Package terminal makes text that agents wrote safe to print.
//
// An agent that is taken over can print escape sequences which rename the
// window, hide lines, fake a prompt, or make some terminals answer as if the
// operator had typed (CVE-2003-0063 and its many successors). Everything that
// an agent wrote passes through a [Writer], [Text] or [Line] before it reaches
// a terminal.
//
// Kept: printable characters, line ends and tabs. Taken out: every other C0
// and C1 control, DEL, and whole escape sequences (CSI, OSC, DCS, SOS, PM, APC
// as in ECMA-48). Shown as \x9b or \u202e: bytes that are not UTF-8, and the
// characters that reorder or break lines (Unicode bidirectional controls, line
// and paragraph separators). A sequence that does not end swallows nothing
// beyond its line, so it cannot hide what follows.
//
// Not kept: look-alike letters and wide characters are printed as they are.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// state says inside which kind of sequence the next character stands.
type state int

const (
	text   state = iota
	escape       // after ESC, and in its intermediate characters
	csi          // control sequence: parameters until a final character
	str          // OSC, DCS, SOS, PM, APC: until ST, BEL or the line's end
	strEsc       // ESC inside a string: the first half of ST
)

// Writer cleans a stream on its way to another writer. Sequences and
// characters may be split over writes in any way. It is for one goroutine.
type Writer struct {
	w     io.Writer
	state state
	part  []byte // the beginning of a character that is not complete yet
}

// NewWriter gives a Writer to w. Call Flush when the stream ends.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write cleans p. It reports len(p) when everything that came of p was written.
func (t *Writer) Write(p []byte) (int, error) {
	data := p
	if len(t.part) > 0 {
		data = append(t.part, p...)
		t.part = nil
	}
	var out strings.Builder
	for len(data) > 0 {
		if !utf8.FullRune(data) {
			t.part = append([]byte(nil), data...)
			break
		}
		c, n := utf8.DecodeRune(data)
		if c == utf8.RuneError && n == 1 {
			t.broken(&out, data[0])
		} else {
			t.char(&out, c)
		}
		data = data[n:]
	}
	if out.Len() > 0 {
		if _, err := io.WriteString(t.w, out.String()); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Flush shows what is left of a character that never became complete.
func (t *Writer) Flush() error {
	var out strings.Builder
	for _, b := range t.part {
		t.broken(&out, b)
	}
	t.part, t.state = nil, text
	_, err := io.WriteString(t.w, out.String())
	return err
}

// broken shows a byte that is not UTF-8. Terminals in 8-bit mode take 0x80 to
// 0x9f as controls, so the byte itself is never passed on.
func (t *Writer) broken(out *strings.Builder, b byte) {
	if t.state == str || t.state == strEsc {
		return
	}
	t.state = text
	fmt.Fprintf(out, `\x%02x`, b)
}

func (t *Writer) char(out *strings.Builder, c rune) {
	if c == '\n' {
		t.state = text
		out.WriteByte('\n')
		return
	}
	switch t.state {
	case escape:
		switch {
		case c == '[':
			t.state = csi
		case strings.ContainsRune("]PX^_", c):
			t.state = str
		case c >= 0x20 && c <= 0x2f: // intermediate: stay
		case c >= 0x30 && c <= 0x7e: // final
			t.state = text
		default:
			t.state = text
			t.plain(out, c)
		}
	case csi:
		switch {
		case c >= 0x20 && c <= 0x3f:
		case c >= 0x40 && c <= 0x7e:
			t.state = text
		default:
			t.state = text
			t.plain(out, c)
		}
	case str:
		switch c {
		case 0x07, 0x9c:
			t.state = text
		case 0x1b:
			t.state = strEsc
		}
	case strEsc:
		switch c {
		case '\\':
			t.state = text
		case 0x1b:
		default:
			// ESC ends the string; what follows begins a new sequence.
			t.state = escape
			t.char(out, c)
		}
	default:
		t.plain(out, c)
	}
}

// plain handles a character outside of sequences.
func (t *Writer) plain(out *strings.Builder, c rune) {
	switch {
	case c == 0x1b:
		t.state = escape
	case c == 0x9b:
		t.state = csi
	case c == 0x90 || c == 0x98 || c == 0x9d || c == 0x9e || c == 0x9f:
		t.state = str
	case c == '\t':
		out.WriteByte('\t')
	case Printable(c):
		out.WriteRune(c)
	case reorders(c):
		fmt.Fprintf(out, `\u%04x`, c)
	}
}

// reorders names the characters that change where other text appears: the
// bidirectional controls of Unicode (UAX #9) and the two line separators.
func reorders(c rune) bool {
	return c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069 ||
		c == 0x200e || c == 0x200f || c == 0x061c || c == 0x2028 || c == 0x2029
}

// Printable says whether a character passes a Writer as it is, line ends and
// tabs aside.
func Printable(c rune) bool {
	return c >= 0x20 && (c < 0x7f || c > 0x9f) && !reorders(c)
}

// Visible says whether a character is seen as it is, for text by which somebody decides.
// It is stricter than [Printable]: what has no width of its own, selects a variant, or
// is a blank that is no space could hide there what a program reads.
func Visible(c rune) bool {
	return Printable(c) && unicode.IsPrint(c) && !unicode.In(c, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) &&
		c != 0x2800 && c != 0xfffc && c != utf8.RuneError // a blank of Braille, what stands for another
}

// Text cleans a whole text.
func Text(s string) string {
	var out strings.Builder
	w := NewWriter(&out)
	_, _ = io.WriteString(w, s) // a Builder does not fail
	_ = w.Flush()
	return out.String()
}

// Line cleans a text and puts it on one line, for tables.
func Line(s string) string {
	return strings.Join(strings.Fields(Text(s)), " ")
}
