package team

import (
	_ "embed"
	"strings"
)

// suffixes are the rules of the Public Suffix List (https://publicsuffix.org,
// MPL-2.0; the list of 2026-02-06 as in golang.org/x/net v0.62.0), one a line and sorted, with its
// wildcards (*.ck) and exceptions (!www.ck). golang.org/x/net/publicsuffix has
// the same rules, but brings net/http into every program that reads a
// manifest, the warden among them. A test holds the two equal; after an update
// of that module it says which rules to add here.
//
//go:embed embed/suffixes.txt
var suffixes string

// suffixBelow says whether a *.name would cover names that different people
// own: name is a public suffix, or one lies below it. It gives such a suffix.
func suffixBelow(name string) (suffix string, found bool) {
	if isSuffix(name) {
		return name, true
	}
	rest := suffixes
	for {
		i := strings.Index(rest, "."+name+"\n")
		if i < 0 {
			return "", false
		}
		rule := rest[strings.LastIndexByte(rest[:i], '\n')+1 : i+1+len(name)]
		// An exception takes a name out of the list of suffixes.
		if !strings.HasPrefix(rule, "!") {
			return strings.TrimPrefix(rule, "*."), true
		}
		rest = rest[i+1:]
	}
}

// isSuffix says whether anybody can register names directly below name
// (https://publicsuffix.org/list/, "algorithm"; its last rule is "*", by which
// every top-level domain is one).
func isSuffix(name string) bool {
	if hasRule("!" + name) {
		return false
	}
	_, parent, dotted := strings.Cut(name, ".")
	return !dotted || hasRule(name) || hasRule("*."+parent)
}

// hasRule looks a line up. The lines are sorted by their bytes.
func hasRule(rule string) bool {
	for list := suffixes; list != ""; {
		start := strings.LastIndexByte(list[:len(list)/2], '\n') + 1
		line, rest, _ := strings.Cut(list[start:], "\n")
		switch {
		case line == rule:
			return true
		case line < rule:
			list = rest
		default:
			list = list[:start]
		}
	}
	return false
}
