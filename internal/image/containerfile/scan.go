package containerfile

import (
	"errors"
	"fmt"
	"strings"
)

// Fault is one thing that is wrong with a file.
type Fault struct {
	File         string
	Line, Column int // from 1; columns count bytes
	Why, Mend    string
}

func (f *Fault) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s", f.File, f.Line, f.Column, f.Why, f.Mend)
}

// place is where a byte of a logical line stands in the file.
type place struct{ line, column int }

// logical is one instruction, its continuation lines joined.
type logical struct {
	text string
	at   []place // of each byte of text
}

// from cuts the first n bytes off.
func (l logical) from(n int) logical { return logical{l.text[n:], l.at[n:]} }

// cut gives the bytes [a, b).
func (l logical) cut(a, b int) logical { return logical{l.text[a:b], l.at[a:b]} }

// start is where the line begins.
func (l logical) start() place {
	if len(l.at) == 0 {
		return place{1, 1}
	}
	return l.at[0]
}

func (l logical) trim() logical {
	a := len(l.text) - len(strings.TrimLeft(l.text, " \t"))
	b := len(strings.TrimRight(l.text, " \t"))
	if a >= b {
		return logical{at: l.at[:min(1, len(l.at))]} // remembers where it was
	}
	return l.cut(a, b)
}

// maxFile bounds a Containerfile and an ignore file.
const maxFile = 256 << 10

// scan joins continuation lines and leaves out comments and empty lines, also
// between continued ones.
func (p *parser) scan(text string) (out []logical) {
	var now logical
	open, directives := false, true
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		bare := strings.TrimLeft(line, " \t")
		if comment, ok := strings.CutPrefix(bare, "#"); ok {
			if directives {
				p.directive(n+1, comment)
			}
			continue
		}
		directives = false
		if strings.TrimSpace(bare) == "" {
			continue
		}
		body := strings.TrimRight(line, " \t")
		body, more := strings.CutSuffix(body, `\`)
		if !more {
			body = line
		}
		for i := range len(body) {
			now.at = append(now.at, place{n + 1, i + 1})
		}
		now.text += body
		if open = more; !open {
			out, now = append(out, now.trim()), logical{}
		}
	}
	if open && now.text != "" {
		out = append(out, now.trim())
	}
	return out
}

// directive refuses the one parser directive that changes what a file means.
func (p *parser) directive(line int, comment string) {
	key, value, ok := strings.Cut(comment, "=")
	if ok && strings.EqualFold(strings.TrimSpace(key), "escape") && strings.TrimSpace(value) != `\` {
		p.fault(place{line, 1}, "another escape character", `write \ at the end of continued lines, and leave this directive out`)
	}
}

func (p *parser) fault(at place, why, mend string) {
	p.faults = append(p.faults, &Fault{File: p.file, Line: at.line, Column: at.column, Why: why, Mend: mend})
}

func (p *parser) err() error { return errors.Join(p.faults...) }
