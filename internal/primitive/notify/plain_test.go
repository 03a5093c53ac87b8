package notify

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzPlain holds that whatever an agent writes is one line that does nothing to a
// terminal.
func FuzzPlain(f *testing.F) {
	f.Add("disk", "90 %\n\x1b[31mfull\u202e")
	f.Add("", " a\r\n\tb\u2028c\u0085d ")
	f.Add("\x9b31m", "\xff\xfe\x1b]0;x\a")
	f.Fuzz(func(t *testing.T, subject, message string) {
		got := plain(subject, message)
		if !utf8.ValidString(got) {
			t.Fatalf("%q, %q: %q is not UTF-8", subject, message, got)
		}
		for _, r := range got {
			if !unicode.IsPrint(r) { // of all spaces it is the plain one alone
				t.Fatalf("%q, %q: %q holds %U", subject, message, got, r)
			}
		}
		if strings.TrimSpace(got) != got || strings.Contains(got, "  ") || plain("", got) != got {
			t.Fatalf("%q, %q: %q is not one line of words", subject, message, got)
		}
	})
}
