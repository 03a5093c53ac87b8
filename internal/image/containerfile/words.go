package containerfile

import (
	"encoding/json"
	"fmt"
	"strings"
)

// word is one argument; at is where it begins.
type word struct {
	text string
	at   place
}

// fields splits at blanks outside of quotes, which stay.
func fields(l logical) (out []logical) {
	begin, quote := -1, byte(0)
	for i := 0; i < len(l.text); i++ {
		c := l.text[i]
		if quote == 0 && (c == ' ' || c == '\t') {
			if begin >= 0 {
				out = append(out, l.cut(begin, i))
			}
			begin = -1
			continue
		}
		if begin < 0 {
			begin = i
		}
		switch {
		case c == '\\' && quote != '\'':
			i++ // what follows is no quote and no blank
		case c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		}
	}
	if begin >= 0 {
		out = append(out, l.cut(begin, len(l.text)))
	}
	return out
}

// expand takes quotes off and puts variables in: $NAME, ${NAME},
// ${NAME:-word}, ${NAME:+word}. In single quotes nothing is a variable.
func (p *parser) expand(l logical, vars map[string]string) word {
	w := word{at: l.start()}
	var out strings.Builder
	quote := byte(0)
	for i := 0; i < len(l.text); i++ {
		c := l.text[i]
		switch {
		case c == quote && quote != 0:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == '\\' && quote != '\'' && i+1 < len(l.text):
			i++
			if next := l.text[i]; quote == '"' && !strings.ContainsRune("\"\\$", rune(next)) {
				out.WriteByte('\\')
			}
			out.WriteByte(l.text[i])
		case c == '$' && quote != '\'':
			n, value := p.variable(l.from(i), vars)
			out.WriteString(value)
			i += n - 1
		default:
			out.WriteByte(c)
		}
	}
	if quote != 0 {
		p.fault(w.at, "a quote that is not closed", fmt.Sprintf("close it with %c, or write \\%c", quote, quote))
	}
	w.text = out.String()
	return w
}

// variable gives the value of the variable that l begins with, and its length
// in l, at least 1.
func (p *parser) variable(l logical, vars map[string]string) (n int, value string) {
	name, how, alt := "", "", ""
	if strings.HasPrefix(l.text, "${") {
		end := strings.IndexByte(l.text, '}')
		if end < 0 {
			p.fault(l.start(), "a ${ that is not closed", "close it with }")
			return len(l.text), ""
		}
		name, n = l.text[2:end], end+1
		if i := strings.IndexByte(name, ':'); i >= 0 && i+1 < len(name) {
			name, how, alt = name[:i], name[i:i+2], name[i+2:]
		}
		if !isName(name) || how != "" && how != ":-" && how != ":+" || strings.ContainsAny(alt, `$"'\`) {
			p.fault(l.start(), fmt.Sprintf("%.60q is not understood", l.text[:n]), "write ${NAME}, ${NAME:-word} or ${NAME:+word}, with a plain word")
			return n, ""
		}
	} else {
		n = 1
		for n < len(l.text) && isName("_"+l.text[n:n+1]) {
			n++
		}
		if name = l.text[1:n]; !isName(name) {
			p.fault(l.start(), "a $ without a name", `write \$ for the character`)
			return 1, ""
		}
	}
	value, set := vars[name]
	switch {
	case how == ":-" && value == "":
		return n, alt
	case how == ":+" && value == "":
		return n, ""
	case how == ":+":
		return n, alt
	case !set && how == "":
		p.fault(l.start(), name+" is not set here", "declare it above with ARG "+name+"=default or ENV (a base image's environment is not taken over)")
	}
	return n, value
}

// isName says whether s is a variable's name.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// list reads the exec form, a JSON list of strings; ok is false for the other form.
func list(l logical) (argv []string, ok bool) {
	if !strings.HasPrefix(l.text, "[") || json.Unmarshal([]byte(l.text), &argv) != nil {
		return nil, false
	}
	return argv, true
}
