package attest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Difference is one thing in which two pieces of evidence differ. An empty side
// means that it is only in the other.
type Difference struct {
	What   string `json:"what"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	Worse  bool   `json:"worse,omitempty"` // what passed before does not pass any more
}

// Differences compares two statements: what they are about, how each test ended,
// and what was read for each statement of prove; in order, what got worse first.
func Differences(before, after *Statement) ([]Difference, error) {
	b, err := facts(before)
	if err != nil {
		return nil, err
	}
	a, err := facts(after)
	if err != nil {
		return nil, err
	}
	gone, err := asleep(before, after)
	if err != nil {
		return nil, err
	}
	out := []Difference{}
	for _, what := range slices.Sorted(maps.Keys(union(b, a))) {
		if b[what] == a[what] {
			continue
		}
		ok := outcomes[passed]
		gotWorse := a[what] == outcomes[failed] || b[what] == ok && a[what] != ok
		if _, there := a[what]; !there && slices.Contains(gone, agentOf(what)) {
			gotWorse = false // nothing of it runs
		}
		out = append(out, Difference{What: what, Before: b[what], After: a[what], Worse: gotWorse})
	}
	slices.SortStableFunc(out, func(x, y Difference) int {
		switch {
		case x.Worse == y.Worse:
			return cmp.Compare(x.What, y.What)
		case x.Worse:
			return -1
		}
		return 1
	})
	return out, nil
}

// asleep are the guests that were attacked before and are not now: they come and
// go with who calls them.
func asleep(before, after *Statement) ([]string, error) {
	b, err := before.Predicate.Evidence.Seen()
	if err != nil {
		return nil, err
	}
	a, err := after.Predicate.Evidence.Seen()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(b.Verify.Guests), func(g string) bool { return slices.Contains(a.Verify.Guests, g) }), nil
}

// agentOf is the agent that the name of a test has; "" when it has none.
func agentOf(test string) string {
	f := strings.Split(test, "/")
	if len(f) < 2 || f[0] != "attack" && f[0] != "statement" {
		return ""
	}
	return f[1]
}

var outcomes = map[worst]string{passed: "passed", notRun: "not run", failed: "failed"}

// facts is everything that a statement says, one value for each name.
func facts(s *Statement) (map[string]string, error) {
	seen, err := s.Predicate.Evidence.Seen()
	if err != nil {
		return nil, err
	}
	out := map[string]string{"result": s.Predicate.Result, "build of the warden": s.Predicate.Evidence.Build}
	for _, r := range slices.Concat(s.Subject, s.Predicate.Configuration) {
		out[r.Name] = "sha256:" + r.Digest["sha256"]
		for k, v := range r.Annotations {
			out[r.Name+" "+k] = v
		}
	}
	for name, w := range seen.Tests() {
		out[name] = outcomes[w]
	}
	for _, p := range seen.Prove.Statements {
		for _, line := range p.Read {
			if standing(p.ID) {
				out["read for statement/"+p.Agent+"/"+p.ID+": "+line] = "there"
			}
		}
		for _, line := range p.Against {
			out["against statement/"+p.Agent+"/"+p.ID+": "+line] = "there"
		}
	}
	for _, n := range s.Predicate.Evidence.NotCovered {
		out["not covered: "+n] = "there"
	}
	return out, nil
}

// standing says whether what is read for a statement changes only when something
// that was set up does; counts of threads come and go.
func standing(id string) bool {
	switch id {
	case "egress.dialer", "ids", "limits":
		return true
	}
	return false
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
