package prove

import (
	"fmt"
	"strings"
	"time"
)

// SchemaVersion is the version of the report's JSON form.
const SchemaVersion = 1

// Report is what was proven of one team, and what was not.
type Report struct {
	SchemaVersion int         `json:"schemaVersion"`
	Time          time.Time   `json:"time"` // UTC
	Team          string      `json:"team"`
	Kernel        string      `json:"kernel"`
	Agents        []string    `json:"agents"`
	Fenced        []string    `json:"fenced,omitempty"` // agents of which little can be said until they are released
	Held          int         `json:"held"`
	Failed        int         `json:"failed"`
	Statements    []Statement `json:"statements"`
}

// Statement is one theorem about one agent.
type Statement struct {
	ID       string    `json:"id"`
	Agent    string    `json:"agent"`
	Says     string    `json:"says"`
	Holds    bool      `json:"holds"`
	Premises []Premise `json:"premises,omitempty"`
	// Read is what was found, in words: the whole answer, not an example.
	Read []string `json:"read,omitempty"`
	// Against is what contradicts the statement; empty when it holds.
	Against []string `json:"against,omitempty"`
}

// Premise is what a statement rests on besides.
type Premise struct {
	Says  string `json:"says"`
	Holds bool   `json:"holds"`
	Why   string `json:"why,omitempty"` // when it does not
}

// maxAgainst bounds what one statement lists.
const maxAgainst = 20

// against notes what contradicts.
func (s *Statement) against(format string, args ...any) {
	switch len(s.Against) {
	case maxAgainst:
		s.Against = append(s.Against, "and more")
	default:
		if len(s.Against) < maxAgainst {
			s.Against = append(s.Against, fmt.Sprintf(format, args...))
		}
	}
}

func (s *Statement) premise(says string, why string) {
	s.Premises = append(s.Premises, Premise{Says: says, Holds: why == "", Why: why})
}

// close decides.
func (s *Statement) close() {
	s.Holds = len(s.Against) == 0
	for _, p := range s.Premises {
		s.Holds = s.Holds && p.Holds
	}
}

// OK says whether everything was proven.
func (r *Report) OK() bool { return r.Failed == 0 && r.Held > 0 }

// ExitCode is 0 when everything was proven, else 1.
func (r *Report) ExitCode() int {
	if r.OK() {
		return 0
	}
	return 1
}

func (r *Report) add(s Statement) {
	s.close()
	if s.Holds {
		r.Held++
	} else {
		r.Failed++
	}
	r.Statements = append(r.Statements, s)
}

// Text is the report for a person.
func (r *Report) Text() string {
	var b strings.Builder
	for _, s := range r.Statements {
		mark := "holds "
		if !s.Holds {
			mark = "BROKEN"
		}
		fmt.Fprintf(&b, "%s  %-14s %-14s %s\n", mark, s.Agent, s.ID, s.Says)
		for _, p := range s.Premises {
			if !p.Holds {
				fmt.Fprintf(&b, "        premise does not hold: %s: %s\n", p.Says, p.Why)
			}
		}
		for _, a := range s.Against {
			fmt.Fprintf(&b, "        against it: %s\n", a)
		}
	}
	fmt.Fprintf(&b, "\n%d statements: %d hold, %d do not\n", r.Held+r.Failed, r.Held, r.Failed)
	return b.String()
}
