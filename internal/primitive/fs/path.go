package fs

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// Bounds of a path. A name's is the file system's own (NAME_MAX).
const (
	MaxPath  = 1024 // bytes
	MaxName  = 255  // bytes of one name
	MaxDepth = 32   // names
)

// Path is a checked path below an agent's root: names without any meaning to
// a file system, at most [MaxDepth] of them. The empty one is the root.
type Path struct{ names []string }

// String gives the one spelling that the path has.
func (p Path) String() string {
	if len(p.names) == 0 {
		return "."
	}
	return strings.Join(p.names, "/")
}

// Root says whether it is the agent's root itself.
func (p Path) Root() bool { return len(p.names) == 0 }

// parent gives the path of the folder, and the name in it.
func (p Path) parent() (Path, string) {
	last := len(p.names) - 1
	return Path{p.names[:last]}, p.names[last]
}

// escape is what some program after us may decode to a separator or dot.
var escape = regexp.MustCompile(`(?i)%(?:00|2e|2f|5c|25)`)

// Parse checks a path. It is not what keeps an agent below its root: that is
// openat2, for every path. It refuses what a person or another program would
// take for another path than the kernel does, so that what is written down, shown and
// exported means the file that was touched. what names the caller in refusals.
//
// One file has one spelling: relative, "/" between names, no empty, "." or
// ".." name, NFC. "" , "." and "/" are the root.
func Parse(what, s string) (Path, *deny.Reason) {
	invalid := func(format string, args ...any) (Path, *deny.Reason) {
		r := tool.Refuse(deny.ToolInvalid, what, "the path is malformed", "give a path like notes/today.md")
		r.Fields = []deny.Field{{Name: "path", Why: fmt.Sprintf(format, args...)}}
		return Path{}, r
	}
	unsafe := func(format string, args ...any) (Path, *deny.Reason) {
		return Path{}, tool.Refuse(deny.ToolUnsafe, what, fmt.Sprintf(format, args...),
			"give a path below the agent's own folder, like notes/today.md: plain names with / between them")
	}
	if s == "" || s == "." || s == "/" {
		return Path{}, nil
	}
	if len(s) > MaxPath {
		return invalid("it has %d bytes; at most %d are taken", len(s), MaxPath)
	}
	if !utf8.ValidString(s) {
		return unsafe("the path is not UTF-8")
	}
	for _, c := range s {
		if why := odd(c); why != "" {
			return unsafe("the path has %U, %s", c, why)
		}
	}
	if !norm.NFC.IsNormalString(s) {
		return unsafe("the path is spelt with decomposed characters (it is not in Unicode's form NFC): it looks like another one")
	}
	if at := escape.FindString(s); at != "" {
		return unsafe("the path has %q, which decodes to another path elsewhere", at)
	}
	if s[0] == '/' {
		return unsafe("the path is absolute; paths are relative to the agent's own folder")
	}
	names := strings.Split(s, "/")
	if len(names) > MaxDepth {
		return invalid("it has %d names; at most %d are taken", len(names), MaxDepth)
	}
	for _, n := range names {
		switch {
		case n == "":
			return invalid("a name in it is empty: // or a / at its end")
		case strings.Trim(n, ".") == "":
			return unsafe("the name %q would leave or rename the folder that it is in", n)
		case n[0] == ' ' || n[len(n)-1] == ' ' || n[len(n)-1] == '.':
			return unsafe("the name %q begins with a space or ends with a space or dot, which others drop", n)
		case len(n) > MaxName:
			return invalid("the name %.20q… has %d bytes; at most %d are taken", n, len(n), MaxName)
		}
	}
	return Path{names}, nil
}

// odd says why a character may not be in a name; empty: it may.
func odd(c rune) string {
	switch {
	case c == '\\':
		return "a backslash, which separates names elsewhere"
	case c >= ' ' && c <= '~':
		return ""
	case c == utf8.RuneError:
		return "which stands for what could not be decoded"
	case unicode.Is(unicode.Cc, c):
		return "a control character"
	case unicode.Is(unicode.Cf, c):
		return "which is invisible or turns the direction of the text"
	case unicode.In(c, unicode.Zs, unicode.Zl, unicode.Zp):
		return "a space that is not the ordinary one"
	case unicode.In(c, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
		return "which is invisible"
	case unicode.Is(unicode.Noncharacter_Code_Point, c) || unicode.Is(unicode.Co, c) || !unicode.IsGraphic(c):
		return "which is no assigned character"
	case dotOrSlash(c):
		return "which looks like a dot, slash or backslash"
	}
	return ""
}

// dotOrSlash finds what Unicode's compatibility mapping turns into one, as the
// full-width forms and leaders, and what merely looks like one.
func dotOrSlash(c rune) bool {
	switch c {
	case 0x2044, 0x2215, 0x2216, 0x29F5, 0x29F6, 0x29F8, 0x29F9, // fraction slash, division slash, set minus, …
		0x2571, 0x2572, // box drawings diagonals
		0x20E5, 0x0337, 0x0338, // combining solidus overlays, reverse solidus overlay
		0x1735, 0x2CC6, 0x3033, 0x4E3F, 0x31D3, 0x1D23A, // confusables.txt (UTS 39) for "/"
		0x27CD, 0x2F02, 0x4E36, 0x31D4, // confusables.txt for "\"
		0x0701, 0x0702, 0xA4F8, 0xA60E, 0x10A50, 0x1D16D: // confusables.txt for ".", but for digits
		return true
	}
	return strings.ContainsAny(norm.NFKC.String(string(c)), `./\`)
}
