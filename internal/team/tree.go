package team

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Bounds of the YAML tree. A manifest of 1,000 agents stays far below them;
// "billion laughs" aliases and deep nesting do not.
const (
	maxDepth  = 32
	maxVisits = 200_000 // nodes read, each use of an alias counted again
)

// reader walks the YAML tree and gathers faults. After a fault it goes on, so
// that one run tells them all; what it returns then is not used.
type reader struct {
	file    string // as the caller named it
	dir     string // absolute folder that relative paths start from
	anchors map[string]ast.Node
	visits  int
	spent   bool // maxVisits was reached and told
	faults  Faults

	with    Expansions // nil: presets stand for nothing yet
	presets []string   // that the file names

	peered []peered // agents that were named before all were known
}

// place is a node together with its dotted path.
type place struct {
	node ast.Node // nil for something that is absent
	path string
}

func (p place) key(k string) string {
	if p.path == "" {
		return k
	}
	return p.path + "." + k
}

func (p place) at(i int) string { return p.path + "[" + strconv.Itoa(i) + "]" }

// position gives line and column of a node.
func position(n ast.Node) (line, column int) {
	if n == nil {
		return 0, 0
	}
	t := n.GetToken()
	// A mapping's token is the ':' of its first entry; its first key is where
	// a person looks.
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return position(m.Values[0])
		}
	case *ast.MappingValueNode:
		t = m.Key.GetToken()
	}
	return tokenPosition(t)
}

func tokenPosition(t *token.Token) (line, column int) {
	if t == nil || t.Position == nil {
		return 0, 0
	}
	return t.Position.Line, t.Position.Column
}

func (r *reader) fault(p place, mend, format string, args ...any) {
	line, column := position(p.node)
	r.faults = append(r.faults, Fault{
		File: r.file, Line: line, Column: column, Path: p.path,
		Problem: fmt.Sprintf(format, args...), Mend: mend,
	})
}

// faulty says whether a fault of p, or of something within it, was told already:
// what would follow from its value is then not worth telling.
func (r *reader) faulty(p place) bool {
	return p.node != nil && slices.ContainsFunc(r.faults, func(f Fault) bool {
		rest, ok := strings.CutPrefix(f.Path, p.path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// resolve follows anchors and aliases. It gives false when the node
// cannot be used, after telling why.
func (r *reader) resolve(p place) (place, bool) {
	for hop := 0; ; hop++ {
		if r.visits++; r.visits > maxVisits || hop > maxDepth {
			if !r.spent {
				r.spent = true
				r.fault(p, "write the values out instead of nesting aliases", "the aliases expand to more than %d values", maxVisits)
			}
			return p, false
		}
		switch n := p.node.(type) {
		case *ast.AnchorNode:
			p.node = n.Value
		case *ast.AliasNode:
			name := n.Value.GetToken().Value
			target, ok := r.anchors[name]
			if !ok {
				r.fault(p, "define &"+name+" before it is used, or write the value out", "alias *%s has no anchor", clip(name))
				return p, false
			}
			p.node = target
		case nil:
			return p, false
		default:
			return p, true
		}
	}
}

// entry is one key and value of a mapping.
type entry struct {
	name string
	key  place // at the key
	val  place // at the value
}

// mapping reads a mapping with text keys. Duplicate keys are told; the first
// one counts.
func (r *reader) mapping(p place, what string) ([]entry, bool) {
	p, ok := r.resolve(p)
	if !ok {
		return nil, false
	}
	var values []*ast.MappingValueNode
	switch n := p.node.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.fault(p, "write "+what, "this is %s, not a mapping", kindOf(p.node))
		return nil, false
	}
	out := make([]entry, 0, len(values))
	seen := make(map[string]int, len(values))
	for _, v := range values {
		if r.visits++; r.visits > maxVisits {
			return out, false
		}
		if _, merge := v.Key.(*ast.MergeKeyNode); merge {
			r.fault(place{v.Key, p.path}, "put what agents share under defaults", "merge keys (<<) are not read")
			continue
		}
		name, ok := keyText(v.Key)
		if !ok {
			r.fault(place{v.Key, p.path}, "write the key as plain text", "this key is not text")
			continue
		}
		e := entry{name: name, key: place{v.Key, p.key(clip(name))}, val: place{v.Value, p.key(clip(name))}}
		line, _ := position(v.Key)
		if first, dup := seen[name]; dup {
			r.fault(e.key, "keep one of the two", "%q is already set in line %d", clip(name), first)
			continue
		}
		seen[name] = line
		out = append(out, e)
	}
	return out, true
}

// fields reads a mapping whose keys are known, and tells unknown ones with
// what was probably meant.
func (r *reader) fields(p place, what string, known ...string) map[string]place {
	entries, ok := r.mapping(p, what)
	if !ok {
		return nil // told; what is missing in it need not be
	}
	out := make(map[string]place, len(entries))
	for _, e := range entries {
		if !contains(known, e.name) {
			mend := "use one of: " + strings.Join(known, ", ")
			if near := nearest(e.name, known); near != "" {
				mend = "did you mean " + near + "?"
			}
			r.fault(e.key, mend, "%q is not a known key", clip(e.name))
			continue
		}
		if _, null := e.val.node.(*ast.NullNode); null {
			r.fault(e.val, "give it a value or remove the line", "%s has no value", e.name)
			continue
		}
		out[e.name] = e.val
	}
	return out
}

// list reads a sequence of at most limit entries.
func (r *reader) list(p place, limit int, what string) []place {
	if p.node == nil {
		return nil
	}
	p, ok := r.resolve(p)
	if !ok {
		return nil
	}
	seq, ok := p.node.(*ast.SequenceNode)
	if !ok {
		r.fault(p, "write a list: "+what, "this is %s, not a list", kindOf(p.node))
		return nil
	}
	if len(seq.Values) > limit {
		r.fault(p, fmt.Sprintf("keep at most %d entries", limit), "the list has %d entries", len(seq.Values))
		return nil
	}
	out := make([]place, len(seq.Values))
	for i, v := range seq.Values {
		out[i] = place{rejoined(v), p.at(i)}
	}
	return out
}

// rejoined mends a habit of the YAML library: inside {…} it reads the list
// entry a:443 as the mapping a: 443. YAML (1.2, 7.3.3) wants a space after the
// colon of a mapping there, so without one the entry is text.
func rejoined(n ast.Node) ast.Node {
	m, ok := n.(*ast.MappingNode)
	if !ok || len(m.Values) != 1 || m.Start == nil || m.Start.Type == token.MappingStartType {
		return n
	}
	v := m.Values[0]
	key, colon := v.Key.GetToken(), v.Start
	if v.Value == nil || colon == nil || isMapping(v.Value) || isSequence(v.Value) {
		return n
	}
	val := v.Value.GetToken()
	for _, t := range []*token.Token{key, val} {
		if t == nil || t.Position == nil || t.Position.Line != colon.Position.Line ||
			t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType {
			return n
		}
	}
	if key.Position.Offset+len([]rune(key.Value)) != colon.Position.Offset || colon.Position.Offset+1 != val.Position.Offset {
		return n
	}
	whole := *key
	whole.Value = key.Value + ":" + val.Value
	return &ast.StringNode{BaseNode: &ast.BaseNode{}, Token: &whole, Value: whole.Value}
}

// text reads a scalar as it was written: "8080" and 8080 are the same text,
// so that nobody is surprised by YAML's guesses (yes, 0x10, 1e3).
func (r *reader) text(p place, what string) (string, bool) {
	if p.node == nil {
		return "", false
	}
	p, ok := r.resolve(p)
	if !ok {
		return "", false
	}
	var s string
	switch n := p.node.(type) {
	case *ast.StringNode:
		s = n.Value
	case *ast.LiteralNode:
		s = n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode: // bare
		s = strings.TrimSpace(n.GetToken().Value)
	default:
		r.fault(p, "write "+what, "this is %s, not text", kindOf(p.node))
		return "", false
	}
	if i := strings.IndexFunc(s, isControl); i >= 0 {
		r.fault(p, "remove it", "the text holds a control character")
		return "", false
	}
	return s, true
}

// isControl refuses what would let a manifest's text act on a terminal, a log
// line or a C string. Tabs and line ends are text.
func isControl(c rune) bool {
	return c < 0x20 && c != '\n' && c != '\t' || c >= 0x7f && c <= 0x9f || c == '\uFFFD' ||
		c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069
}

func keyText(k ast.MapKeyNode) (string, bool) {
	switch n := k.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return strings.TrimSpace(n.GetToken().Value), true
	}
	return "", false
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "empty"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	}
	return "something else"
}

// clip keeps foreign text in messages short and on one line.
func clip(s string) string {
	const most = 80
	out := strings.Map(func(c rune) rune {
		if isControl(c) || c == '\n' || c == '\t' {
			return '?'
		}
		return c
	}, s)
	if r := []rune(out); len(r) > most {
		return string(r[:most]) + "…"
	}
	return out
}

// anchorsOf gathers every anchor's value. A name that is set twice keeps the
// first, and is told.
type anchorsOf struct{ r *reader }

// Visit implements ast.Visitor.
func (a anchorsOf) Visit(n ast.Node) ast.Visitor {
	if anchor, ok := n.(*ast.AnchorNode); ok && anchor.Name != nil {
		name := anchor.Name.GetToken().Value
		if _, dup := a.r.anchors[name]; dup {
			a.r.fault(place{node: n}, "give each anchor its own name", "anchor &%s is defined twice", clip(name))
		} else {
			a.r.anchors[name] = anchor.Value
		}
	}
	return a
}

func isMapping(n ast.Node) bool {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

func isSequence(n ast.Node) bool {
	_, ok := n.(*ast.SequenceNode)
	return ok
}

func isScalar(n ast.Node) bool { return !isMapping(n) && !isSequence(n) }

// bare says whether YAML reads a scalar without quotes as a number or a boolean.
func bare(n ast.Node) bool {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return true
	}
	return false
}
