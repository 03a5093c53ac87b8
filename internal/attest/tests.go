package attest

import (
	"maps"
	"slices"
)

// Tests are names of tests, each with the worst that was seen of it.
type Tests map[string]worst

// worst is the worst that was seen of a test.
type worst int

const (
	passed worst = iota
	notRun
	failed
)

func (t Tests) note(name string, w worst) { t[name] = max(t[name], w) }

// with lists the tests of one outcome, in order; never nil.
func (t Tests) with(w worst) []string {
	out := []string{}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if t[name] == w {
			out = append(out, name)
		}
	}
	return out
}
