package db

import "strings"

// tokenType is as much of a token as matters here.
type tokenType int

const (
	space tokenType = iota // and comments
	word
	variable
	semicolon
	other // strings, quoted names, numbers, operators
	illegal
)

// token gives the first token of a text that is not empty, and its length, as
// sqlite3GetToken does. A fuzz target holds it against SQLite.
func token(s string) (tokenType, int) {
	switch c := s[0]; {
	case spaceByte(c):
		n := 1
		for n < len(s) && spaceByte(s[n]) {
			n++
		}
		return space, n
	case strings.HasPrefix(s, "\xef\xbb\xbf"):
		return space, 3
	case strings.HasPrefix(s, "--"):
		if n := strings.IndexByte(s, '\n'); n >= 0 {
			return space, n
		}
		return space, len(s)
	case strings.HasPrefix(s, "/*") && len(s) > 2:
		if n := strings.Index(s[2:], "*/"); n >= 0 {
			return space, n + 4
		}
		return space, len(s)
	case c == ';':
		return semicolon, 1
	case c == '\'' || c == '"' || c == '`':
		return quoted(s, c)
	case c == '[':
		if n := strings.IndexByte(s, ']'); n >= 0 {
			return other, n + 1
		}
		return illegal, len(s)
	case c == '?':
		n := 1
		for n < len(s) && digit(s[n]) {
			n++
		}
		return variable, n
	case c == '$' || c == '@' || c == ':' || c == '#':
		return named(s)
	case digit(c) || c == '.' && len(s) > 1 && digit(s[1]):
		return number(s)
	case (c == 'x' || c == 'X') && len(s) > 1 && s[1] == '\'':
		return blob(s)
	case identByte(c):
		n := 1
		for n < len(s) && identByte(s[n]) {
			n++
		}
		return word, n
	case strings.IndexByte("-+*/%()=<>!|&~,.", c) >= 0:
		if c == '!' && (len(s) < 2 || s[1] != '=') {
			return illegal, 1
		}
		return other, 1
	}
	return illegal, 1
}

func quoted(s string, q byte) (tokenType, int) {
	for i := 1; i < len(s); i++ {
		if s[i] != q {
			continue
		}
		if i+1 < len(s) && s[i+1] == q {
			i++
			continue
		}
		return other, i + 1
	}
	return illegal, len(s)
}

func blob(s string) (tokenType, int) {
	n := 2
	for n < len(s) && hex(s[n]) {
		n++
	}
	if n%2 == 1 || n == len(s) || s[n] != '\'' {
		return illegal, n
	}
	return other, n + 1
}

// named is a parameter with a name. SQLite takes Tcl's suffixes as part of it:
// "::" and something in parentheses, in which a semicolon is no end.
func named(s string) (tokenType, int) {
	names := 0
	i := 1
	for ; i < len(s); i++ {
		c := s[i]
		switch {
		case identByte(c):
			names++
			continue
		case c == '(' && names > 0:
			for i++; i < len(s) && !spaceByte(s[i]) && s[i] != ')'; i++ {
			}
			if i == len(s) || s[i] != ')' {
				return illegal, i
			}
			return variable, i + 1
		case c == ':' && i+1 < len(s) && s[i+1] == ':':
			i++
			continue
		}
		break
	}
	if names == 0 {
		return illegal, i
	}
	return variable, i
}

// number takes digits and what follows them directly: SQLite calls a number
// with letters at its end illegal, and so does its parser then.
func number(s string) (tokenType, int) {
	n := 1
	for n < len(s) && (identByte(s[n]) || s[n] == '.' || (s[n] == '+' || s[n] == '-') && (s[n-1] == 'e' || s[n-1] == 'E') && !strings.HasPrefix(strings.ToLower(s), "0x")) {
		n++
	}
	return other, n
}

func spaceByte(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' && c != '\v' }
func digit(c byte) bool     { return c >= '0' && c <= '9' }
func hex(c byte) bool       { return digit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

func identByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || digit(c) || c|0x20 >= 'a' && c|0x20 <= 'z'
}
