package team

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"bulkhead/internal/layout"
)

// Bounds of a manifest as a whole.
const (
	MaxSize   = 1 << 20 // bytes of YAML
	MaxAgents = 1000    // what one warden is tested with
	maxColumn = 128     // of a block entry; with it the parser's recursion is bounded
	maxAnchor = 1000
)

// Parse reads a manifest. path is used in messages, and its folder is where
// relative paths of the manifest start from. On failure the error is a
// [Faults] with everything that is wrong, sorted by place; the manifest is
// then nil. Parse touches no file and may be called from many goroutines.
//
// Presets in egress lists stand for nothing yet: [ParseWith] expands them.
func Parse(path string, data []byte) (*Manifest, error) { return parse(path, data, nil) }

func parse(path string, data []byte, with Expansions) (*Manifest, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, Faults{{File: path, Problem: "its folder cannot be told: " + err.Error(), Mend: "give an absolute path"}}
	}
	r := &reader{file: path, dir: filepath.Dir(abs), anchors: map[string]ast.Node{}, with: with}
	root := r.tree(data)
	var m *Manifest
	if root != nil {
		m = r.manifest(place{node: root})
	}
	if len(r.faults) > 0 {
		return nil, r.faults.sorted()
	}
	m.Presets = r.presets
	return m, nil
}

// tree turns the bytes into one YAML tree, or tells why not.
func (r *reader) tree(data []byte) ast.Node {
	at := func(line, column int, mend, format string, args ...any) ast.Node {
		r.faults = append(r.faults, Fault{
			File: r.file, Line: line, Column: column,
			Problem: fmt.Sprintf(format, args...), Mend: mend,
		})
		return nil
	}
	if len(data) > MaxSize {
		return at(0, 0, "split the team", "the manifest is more than %d MiB", MaxSize>>20)
	}
	if i := badText(data); i >= 0 {
		line, column := lineColumn(data, i)
		return at(line, column, "save the file as plain UTF-8 text", "the file holds a byte that is not text")
	}
	tokens := lexer.Tokenize(string(data))
	for _, f := range nesting(tokens) {
		line, column := tokenPosition(f.at)
		return at(line, column, f.mend, "%s", f.problem)
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		line, column := 0, 0
		problem := err.Error()
		// The library's error type is internal to it; its methods are not.
		if e, ok := err.(interface {
			GetToken() *token.Token
			GetMessage() string
		}); ok {
			line, column = tokenPosition(e.GetToken())
			problem = e.GetMessage()
		}
		if tabbed(data, line) {
			return at(line, 1, "indent with spaces", "a tab indents this line, and YAML takes only spaces")
		}
		return at(line, column, "correct the YAML there: indent with spaces, quote text that holds : # { [ or *", "this is not YAML: %s", clip(problem))
	}
	var docs []ast.Node
	for _, d := range file.Docs {
		if d != nil && d.Body != nil && d.Body.Type() != ast.NullType && d.Body.Type() != ast.CommentType {
			docs = append(docs, d.Body)
		}
	}
	switch len(docs) {
	case 0:
		return at(1, 1, "run `bulkhead init` for a commented manifest to start from", "the manifest is empty")
	case 1:
		ast.Walk(anchorsOf{r}, docs[0])
		return docs[0]
	}
	line, column := position(docs[1])
	return at(line, column, "keep one document; put another team into a file of its own", "the file holds %d documents", len(docs))
}

type nestingFault struct {
	at            *token.Token
	problem, mend string
}

// nesting refuses, before the recursive parser sees them, token streams that
// nest without bound. It returns the first fault only.
func nesting(tokens token.Tokens) []nestingFault {
	flow, anchors := 0, 0
	deep := func(t *token.Token) []nestingFault {
		return []nestingFault{{t, fmt.Sprintf("values are nested deeper than %d levels", maxDepth), "write the values out"}}
	}
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			if flow++; flow > maxDepth {
				return deep(t)
			}
		case token.SequenceEndType, token.MappingEndType:
			flow = max(flow-1, 0)
		case token.SequenceEntryType, token.MappingKeyType:
			if flow == 0 && t.Position.Column > maxColumn {
				return deep(t)
			}
		case token.MappingValueType:
			if flow == 0 && t.Prev != nil && t.Prev.Position.Line == t.Position.Line && t.Prev.Position.Column > maxColumn {
				return deep(t)
			}
		case token.AnchorType:
			if anchors++; anchors > maxAnchor {
				return []nestingFault{{t, fmt.Sprintf("there are more than %d anchors", maxAnchor), "write the values out"}}
			}
		case token.TagType:
			return []nestingFault{{t, "tag " + clip(t.Value) + " is not read", "remove the tag; quote the value if it is text"}}
		case token.DirectiveType:
			return []nestingFault{{t, "YAML directives are not read", "remove the line"}}
		}
	}
	return nil
}

// badText finds the first byte that no manifest may hold.
func badText(data []byte) int {
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && n == 1 || c != '\r' && c != '\uFFFD' && isControl(c) || c == '\uFEFF' && i > 0 {
			return i
		}
		i += n
	}
	return -1
}

func lineColumn(data []byte, offset int) (line, column int) {
	before := string(data[:offset])
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
}

// manifest reads the top of the tree.
func (r *reader) manifest(p place) *Manifest {
	f := r.fields(p, "apiVersion, team and agents", topKeys...)
	m := &Manifest{}
	r.need(p, f, "apiVersion", "add the line apiVersion: "+APIVersion)
	if s, ok := r.text(f["apiVersion"], "apiVersion: "+APIVersion); ok {
		if s != APIVersion {
			r.fault(f["apiVersion"], "write "+APIVersion, "this build does not read version %q", clip(s))
		}
		m.APIVersion = s
	}
	r.need(p, f, "team", "add a line like team: pair")
	if f["team"].node != nil {
		m.Team = r.name(f["team"], "a team")
	}
	upstream, authorities := r.upstream(f["upstreamProxy"]), r.caFiles(f["caFiles"])
	m.Verify = r.verify(f["verify"])
	m.Front, m.Audit = r.front(f["front"]), r.boolean(f["audit"])
	if g := m.Guests(); g != nil {
		g.Upstream, g.CAFiles = upstream, authorities
	}
	d := r.defaults(f["defaults"])
	r.need(p, f, "agents", "add agents: with at least one agent; `bulkhead init` writes an example")
	if f["agents"].node == nil {
		return m
	}
	entries, ok := r.mapping(f["agents"], "agents by name, like writer: {…}")
	switch {
	case ok && len(entries) == 0:
		r.fault(f["agents"], "add at least one agent", "the team has no agent")
		return m
	case len(entries) > MaxAgents:
		// One clear fault: reading on would only bury it.
		r.fault(f["agents"], "split them into several teams", "the team has %d agents, more than %d", len(entries), MaxAgents)
		return m
	}
	accounts := make(map[string]string, len(entries))
	for _, e := range entries {
		r.checkName(e.key, "an agent", e.name)
		account := layout.Account(m.Team, e.name)
		if other, taken := accounts[account]; taken {
			r.fault(e.key, "rename one of the two", "%s and %s would share the account %s", clip(e.name), clip(other), account)
		}
		accounts[account] = e.name
		a := r.agent(e, d)
		a.Upstream, a.CAFiles = upstream, authorities
		m.Agents = append(m.Agents, a)
	}
	r.checkMessages(m, f)
	m.Topics = r.topics(m, f["topics"])
	return m
}

// need tells that a key is missing.
func (r *reader) need(p place, f map[string]place, key, mend string) {
	if _, ok := f[key]; ok || f == nil {
		return
	}
	// A key that is there but has no value was told already.
	line, column := position(p.node)
	for _, known := range r.faults {
		if known.Path == p.key(key) && known.Line >= line {
			return
		}
	}
	r.faults = append(r.faults, Fault{
		File: r.file, Line: line, Column: column, Path: p.path,
		Problem: key + " is missing", Mend: mend,
	})
}

// tabbed says whether the blanks before a line's text hold a tab; lines count
// from 1.
func tabbed(data []byte, line int) bool {
	n := 0
	for l := range bytes.Lines(data) {
		if n++; n == line {
			return bytes.IndexByte(l[:len(l)-len(bytes.TrimLeft(l, " \t"))], '\t') >= 0
		}
	}
	return false
}
