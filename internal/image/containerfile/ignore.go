package containerfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// ignoreFiles are looked for in this order; the first that exists counts.
var ignoreFiles = []string{".containerignore", ".dockerignore"}

// ignored are the patterns of an ignore file, as path.Match takes them.
type ignored []pattern

type pattern struct {
	text string
	any  bool // began with **/: at any depth
}

// readIgnore reads the context's ignore file.
func readIgnore(context *os.Root) (ignored, error) {
	for _, name := range ignoreFiles {
		info, err := context.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || info.Size() > maxFile {
			return nil, fmt.Errorf("%s is no file of at most %d bytes", name, maxFile)
		}
		text, err := context.ReadFile(name)
		if err != nil {
			return nil, err
		}
		return parseIgnore(name, string(text))
	}
	return nil, nil
}

// parseIgnore takes one pattern a line, from the context on; **/ may begin
// one. Exceptions (!) and ** elsewhere are refused.
func parseIgnore(file, text string) (out ignored, err error) {
	p := &parser{file: file}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		at := place{n + 1, 1}
		rest, any := strings.CutPrefix(line, "**/")
		clean := path.Clean("/" + rest)[1:]
		_, bad := path.Match(clean, "")
		switch {
		case line[0] == '!':
			p.fault(at, "an exception", "list what is left out, without !")
		case strings.Contains(clean, "**"):
			p.fault(at, "** inside of a pattern", "write **/ at its beginning only")
		case bad != nil:
			p.fault(at, fmt.Sprintf("%.100q is no pattern", line), "close the [")
		case clean != "":
			out = append(out, pattern{clean, any})
		}
	}
	return out, p.err()
}

// match says whether a path, or a folder above it, is left out.
func (g ignored) match(name string) bool {
	for _, p := range g {
		for at := name; at != "."; at = path.Dir(at) {
			for tail := at; ; {
				if ok, err := path.Match(p.text, tail); err == nil && ok {
					return true
				}
				_, next, more := strings.Cut(tail, "/")
				if !p.any || !more {
					break
				}
				tail = next
			}
		}
	}
	return false
}
