// Package page writes evidence as one HTML page for people: self-contained, with
// no script and nothing that a browser would fetch, and readable when printed.
package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"bulkhead/internal/attest"
)

//go:embed page.html
var text string

var page = template.Must(template.New("page").Parse(text))

// Write writes the page of a file that was opened, so whose signature holds.
func Write(w io.Writer, o *attest.Opened) error {
	e := &o.Statement.Predicate.Evidence
	seen, err := e.Seen()
	if err != nil {
		return err
	}
	v := view{
		KeyID: o.KeyID, Result: o.Statement.Predicate.Result, Team: e.Team, Time: e.Time.UTC().Format("2006-01-02 15:04:05 UTC"),
		Kernel: e.Kernel, Build: e.Build, Seen: seen, NotCovered: e.NotCovered,
		Positions: positions, Matrix: matrix(seen.Verify.Rows), Agents: proofs(seen.Prove.Statements),
	}
	for _, r := range slices.Concat(o.Statement.Subject, o.Statement.Predicate.Configuration) {
		v.Resources = append(v.Resources, resource{r.Name, r.Digest["sha256"], annotations(r)})
	}
	for _, r := range seen.Verify.Rows {
		if r.Verdict != "denied" {
			v.Odd = append(v.Odd, r)
		}
	}
	for _, c := range seen.Verify.Controls.Rows {
		if c.NotRun != "" || !c.Bit {
			v.OddControls = append(v.OddControls, c)
		}
	}
	if err := page.Execute(w, v); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

var positions = []string{"runtime", "gateway", "account", "code", "server"}

// view is what the template shows.
type view struct {
	KeyID, Result, Team, Time, Kernel, Build string

	Resources   []resource
	Seen        *attest.Seen
	Positions   []string
	Matrix      []line
	Odd         []attest.Attempt
	OddControls []attest.Control
	Agents      []agent
	NotCovered  []string
}

type resource struct{ Name, Digest, Notes string }

// line is one attack of the matrix.
type line struct {
	Attack, Layer string
	Cells         []cell // by position
}

type cell struct {
	Text  string
	Class string // "ok", "bad", "open", "none"
}

type agent struct {
	Name   string
	Proofs []attest.Proof
}

func annotations(r attest.Resource) string {
	var out []string
	for k, v := range r.Annotations {
		out = append(out, k+" "+v)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// matrix sums attempts up, by attack and position.
func matrix(rows []attest.Attempt) []line {
	type sum struct{ tried, denied, notRun int }
	sums := map[string]map[string]*sum{}
	var order []attest.Attempt
	for _, r := range rows {
		if sums[r.Attack] == nil {
			sums[r.Attack] = map[string]*sum{}
			order = append(order, r)
		}
		s := sums[r.Attack][r.Position]
		if s == nil {
			s = &sum{}
			sums[r.Attack][r.Position] = s
		}
		s.tried++
		switch r.Verdict {
		case "denied":
			s.denied++
		case "not_run":
			s.notRun++
		}
	}
	slices.SortStableFunc(order, func(a, b attest.Attempt) int { return strings.Compare(a.Attack, b.Attack) })
	var out []line
	for _, r := range order {
		l := line{Attack: r.Attack, Layer: r.Layer}
		for _, p := range positions {
			s := sums[r.Attack][p]
			switch {
			case s == nil:
				l.Cells = append(l.Cells, cell{"–", "none"})
			case s.denied == s.tried:
				l.Cells = append(l.Cells, cell{fmt.Sprintf("denied %d of %d", s.denied, s.tried), "ok"})
			case s.denied+s.notRun == s.tried:
				l.Cells = append(l.Cells, cell{fmt.Sprintf("denied %d of %d, %d not run", s.denied, s.tried, s.notRun), "open"})
			default:
				l.Cells = append(l.Cells, cell{fmt.Sprintf("NOT DENIED %d of %d", s.tried-s.denied-s.notRun, s.tried), "bad"})
			}
		}
		out = append(out, l)
	}
	return out
}

// proofs groups statements by agent, in the order in which they were made.
func proofs(list []attest.Proof) []agent {
	var out []agent
	for _, p := range list {
		i := slices.IndexFunc(out, func(a agent) bool { return a.Name == p.Agent })
		if i < 0 {
			out = append(out, agent{Name: p.Agent})
			i = len(out) - 1
		}
		out[i].Proofs = append(out[i].Proofs, p)
	}
	return out
}
