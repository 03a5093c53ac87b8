package terminal

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTextKeepsWordsAndTakesControlsOut(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "héllo\tworld\n", "héllo\tworld\n"},
		{"colour", "\x1b[1;31mred\x1b[0m", "red"},
		{"clear screen and home", "a\x1b[2J\x1b[Hb", "ab"},
		{"window title ended by BEL", "a\x1b]0;evil\x07b", "ab"},
		{"window title ended by ST", "a\x1b]0;evil\x1b\\b", "ab"},
		{"clipboard write", "a\x1b]52;c;cm0gLXJmIC8=\x07b", "ab"},
		{"device control string", "a\x1bP+q544e\x1b\\b", "ab"},
		{"8-bit CSI as a character", "a\u009b31mb", "ab"},
		{"8-bit OSC as a character", "a\u009d0;evil\u009cb", "ab"},
		{"8-bit CSI as a byte", "a\x9b31mb", `a\x9b31mb`},
		{"charset switch", "a\x1b(0b", "ab"},
		{"reset", "a\x1bcb", "ab"},
		{"unfinished title hides nothing after its line", "a\x1b]0;evil\nnext", "a\nnext"},
		{"unfinished CSI hides nothing after its line", "a\x1b[12\nnext", "a\nnext"},
		{"ESC in a string starts a new sequence", "\x1b]0;x\x1b[31mred", "red"},
		{"ESC ESC", "a\x1b\x1b[31mb", "ab"},
		{"carriage return", "safe\rfake", "safefake"},
		{"backspace and bell", "ab\b\b\ac", "abc"},
		{"bidi override", "a\u202eb", `a\u202eb`},
		{"isolate", "a\u2066b\u2069", `a\u2066b\u2069`},
		{"line separator", "a\u2028b", `a\u2028b`},
		{"not UTF-8", "a\xff\xfeb", `a\xff\xfeb`},
		{"cut off character", "a\xe2\x82", `a\xe2\x82`},
		{"replacement character itself", "a\ufffdb", "a\ufffdb"},
		{"NUL and DEL", "a\x00b\x7fc", "abc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Text(c.in); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got := Line(" a\n\tb\x1b[2J  c "); got != "a b c" {
		t.Errorf("Line: %q", got)
	}
}

// safe says whether s can act on a terminal.
func safe(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return strings.IndexFunc(s, func(c rune) bool {
		return c < 0x20 && c != '\n' && c != '\t' || c >= 0x7f && c <= 0x9f || reorders(c)
	}) < 0
}

func FuzzWriter(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[31m", "\x1b]0;t\x07", "\u009b1m", "\xc2", "\x9b", "\u202e", "a\x1bPq\x1b\\b\n"} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		whole := Text(string(data))
		if !safe(whole) {
			t.Fatalf("unsafe output %q of %q", whole, data)
		}
		if strings.Count(whole, "\n") != bytes.Count(data, []byte("\n")) {
			t.Errorf("%q: lines were hidden or made: %q", data, whole)
		}
		// How the stream is cut must not matter.
		var out bytes.Buffer
		w := NewWriter(&out)
		size := 1
		if cut > 0 {
			size = cut%7 + 1
		}
		for rest := data; len(rest) > 0; {
			n := min(size, len(rest))
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if out.String() != whole {
			t.Errorf("cut into %d: %q, whole: %q", size, out.String(), whole)
		}
		if again := Text(whole); again != whole {
			t.Errorf("cleaning twice differs: %q, %q", whole, again)
		}
	})
}
