package evidence

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// LeftOut says what is no part of a team's matrix, for one reason: its manifest
// gives nothing to aim at, or nothing to attack from. It fails nothing and is
// always said. What the manifest does give and is not there is no such thing: it
// fails its rows.
type LeftOut struct {
	Why     string   `json:"why"`
	Of      []string `json:"of"`      // the agents of which it is said
	Attacks []string `json:"attacks"` // ids
	Rows    int      `json:"rows"`    // that there would be
}

// namedOf is how many agents a line names.
const namedOf = 8

// String is one line for people.
func (l LeftOut) String() string {
	of := strings.Join(l.Of, ", ")
	if n := len(l.Of) - namedOf; n > 1 {
		of = fmt.Sprintf("%s and %d more", strings.Join(l.Of[:namedOf], ", "), n)
	}
	return fmt.Sprintf("%s (of %s): %s of %s left out: %s", l.Why, of, counted(l.Rows, "attempt"), counted(len(l.Attacks), "kind"), strings.Join(l.Attacks, ", "))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// absence is one row that is left out.
type absence struct{ attack, who, why string }

// leftOut sums absences up, by reason, the attacks in the order of the table.
func leftOut(list []absence, order []Attack) []LeftOut {
	type sum struct {
		of, attacks map[string]bool
		rows        int
	}
	sums := map[string]*sum{}
	for _, x := range list {
		s := sums[x.why]
		if s == nil {
			s = &sum{of: map[string]bool{}, attacks: map[string]bool{}}
			sums[x.why] = s
		}
		s.of[x.who], s.attacks[x.attack] = true, true
		s.rows++
	}
	var out []LeftOut
	for why, s := range sums {
		l := LeftOut{Why: why, Of: slices.Sorted(maps.Keys(s.of)), Rows: s.rows}
		for _, a := range order {
			if s.attacks[a.ID] {
				l.Attacks = append(l.Attacks, a.ID)
			}
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b LeftOut) int { return cmp.Compare(a.Why, b.Why) })
	return out
}

// nowhereFrom are the attacks that are made only from positions that none of the
// attackers has: a row for each of them, since no place is asked for them.
func nowhereFrom(attackers []Agent, attacks []Attack) []absence {
	why := map[Position]string{FromCode: "it has no code run", FromServer: "there is no such server", FromRuntime: "it has no runtime"}
	var out []absence
	for _, from := range attackers {
		for _, a := range attacks {
			if !from.Server && !slices.ContainsFunc(a.From, from.has) {
				out = append(out, absence{a.ID, from.Name, why[a.From[0]]})
			}
		}
	}
	return out
}
