package evidence

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
)

// SchemaVersion is the version of the report's JSON form
// (docs/contracts/verify.md).
const SchemaVersion = 1

// Verdict is what a row proves.
type Verdict string

// The verdicts. Only Denied is good; NotRun says why, and fails nothing.
const (
	Denied    Verdict = "denied"
	Succeeded Verdict = "succeeded"
	Unproven  Verdict = "unproven" // lost, failed to try, or refused in a way that nobody expects
	NotRun    Verdict = "not_run"  // this host or kernel lacks what it needs, or the agent was stopped
)

// Report is what verify found.
type Report struct {
	SchemaVersion int      `json:"schemaVersion"`
	Team          string   `json:"team"`
	Agents        []string `json:"agents"`
	Guests        []string `json:"guests,omitempty"` // of Agents: those that were awake
	Attacks       int      `json:"attacks"`          // rows
	Denied        int      `json:"denied"`
	Succeeded     int      `json:"succeeded"`
	Unproven      int      `json:"unproven"`
	NotRun        int      `json:"not_run"`
	Notes         []string `json:"notes,omitempty"` // what the rows cannot show
	// LeftOut is what there are no rows for, since the team has nothing of the kind.
	LeftOut  []LeftOut `json:"leftOut,omitempty"`
	Controls Controls  `json:"controls"`
	// Exhaustion is what came of taking too much, in decoys; absent when none
	// were wanted.
	Exhaustion []ExhaustionRow `json:"exhaustion,omitempty"`
	Seconds    Seconds         `json:"seconds"`
	Rows       []Row           `json:"rows"`
	// Library describes every attack that the rows name.
	Library []Described `json:"library"`
}

// Seconds is how long the parts took.
type Seconds struct {
	Attacks    float64 `json:"attacks"`
	Controls   float64 `json:"controls,omitempty"`
	Exhaustion float64 `json:"exhaustion,omitempty"`
}

// Row is one attempt on one agent.
type Row struct {
	Agent    string     `json:"agent"`
	Position Position   `json:"position"`
	Target   string     `json:"target"` // another agent, or empty
	Attack   string     `json:"attack"`
	Layer    deny.Layer `json:"layer"`
	Verdict  Verdict    `json:"verdict"`
	Evidence string     `json:"evidence"`
}

// Controls sums up what the decoys showed.
type Controls struct {
	Run    int          `json:"run"`
	Bit    int          `json:"bit"`
	NotRun int          `json:"not_run"`
	Rows   []ControlRow `json:"rows"`
}

// ControlRow is one mechanism against one attack.
type ControlRow struct {
	Attack    string             `json:"attack"`
	Mechanism engine.Mechanism   `json:"mechanism"`
	Off       []engine.Mechanism `json:"off"` // switched off in both halves
	Position  Position           `json:"position"`
	On        string             `json:"on"`      // evidence of the half with the mechanism
	Without   string             `json:"without"` // evidence of the half without
	Bit       bool               `json:"bit"`
	NotRun    string             `json:"notRun,omitempty"` // why it could not be built here
}

// OK says whether the report is good enough for exit code 0: something was
// denied, nothing succeeded, nothing is unproven, and every control that ran
// bit, those that take too much included.
func (r *Report) OK() bool {
	for _, x := range r.Exhaustion {
		if !x.Bit && x.NotRun == "" {
			return false
		}
	}
	return r.Denied > 0 && r.Succeeded == 0 && r.Unproven == 0 && r.Controls.Bit == r.Controls.Run
}

// ExitCode is what the command ends with (docs/contracts/exit-codes.md).
func (r *Report) ExitCode() int {
	if r.OK() {
		return 0
	}
	return 1
}

// count fills the sums from the rows and sorts them.
func (r *Report) count() {
	slices.SortStableFunc(r.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(order(a.Position), order(b.Position)))
	})
	r.Attacks, r.Denied, r.Succeeded, r.Unproven, r.NotRun = len(r.Rows), 0, 0, 0, 0
	for _, row := range r.Rows {
		switch row.Verdict {
		case Denied:
			r.Denied++
		case Succeeded:
			r.Succeeded++
		case NotRun:
			r.NotRun++
		default:
			r.Unproven++
		}
	}
	c := &r.Controls
	c.Run, c.Bit, c.NotRun = 0, 0, 0
	for _, row := range c.Rows {
		switch {
		case row.NotRun != "":
			c.NotRun++
		case row.Bit:
			c.Run++
			c.Bit++
		default:
			c.Run++
		}
	}
}

func order(p Position) int { return slices.Index(Positions(), p) }

// Text is the report for a terminal: the matrix, then whatever is not well in
// full, then the sums.
func (r *Report) Text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "ATTACK\tRUNTIME\tGATEWAY\tACCOUNT\tCODE\tSERVER\tCONTROLS\n")
	for _, a := range Attacks() {
		fmt.Fprintf(w, "%s\t", a.ID)
		for _, p := range Positions() {
			fmt.Fprintf(w, "%s\t", r.cell(a.ID, p))
		}
		fmt.Fprintf(w, "%s\n", r.controlCell(a.ID))
	}
	_ = w.Flush() // a strings.Builder takes everything
	for _, row := range r.Rows {
		if row.Verdict != Denied {
			fmt.Fprintf(&b, "%s: %s from %s %s", strings.ToUpper(string(row.Verdict)), row.Attack, row.Agent, row.Position)
			if row.Target != "" {
				fmt.Fprintf(&b, " at %s", row.Target)
			}
			fmt.Fprintf(&b, ": %s\n", row.Evidence)
		}
	}
	for _, c := range r.Controls.Rows {
		switch {
		case c.NotRun != "":
			fmt.Fprintf(&b, "CONTROL NOT RUN: %s: %s\n", c.Attack, c.NotRun)
		case !c.Bit:
			fmt.Fprintf(&b, "CONTROL DID NOT BITE: %s by %s: with it: %s; without it: %s\n", c.Attack, c.Mechanism, c.On, c.Without)
		}
	}
	for _, x := range r.Exhaustion {
		switch {
		case x.NotRun != "":
			fmt.Fprintf(&b, "EXHAUSTION NOT RUN: %s: %s\n", x.Attack, x.NotRun)
		case !x.Bit:
			fmt.Fprintf(&b, "EXHAUSTION NOT HELD: %s by %s: with it: %s; without it: %s; its neighbour: %s\n", x.Attack, x.Mechanism, x.On, x.Without, x.Beside)
		default:
			fmt.Fprintf(&b, "%s: held by %s: %s; its neighbour alone: %s; beside it: %s\n", x.Attack, x.Mechanism, x.On, x.Alone, x.Beside)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "NOTE: %s\n", n)
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(&b, "NOT COVERED: %s\n", l)
	}
	fmt.Fprintf(&b, "%d attacks: %d denied, %d succeeded, %d unproven, %d not run; controls: %d of %d bit, %d not run\n",
		r.Attacks, r.Denied, r.Succeeded, r.Unproven, r.NotRun, r.Controls.Bit, r.Controls.Run, r.Controls.NotRun)
	return b.String()
}

// cell sums up one attack from one position.
func (r *Report) cell(attack string, p Position) string {
	all, denied := 0, 0
	worst := Denied
	for _, row := range r.Rows {
		if row.Attack != attack || row.Position != p {
			continue
		}
		all++
		if row.Verdict == Denied {
			denied++
		} else if worst != Succeeded {
			worst = row.Verdict
		}
	}
	switch {
	case all == 0:
		return "-"
	case worst == Denied:
		return fmt.Sprintf("denied %d/%d", denied, all)
	}
	return fmt.Sprintf("%s %d/%d", strings.ToUpper(string(worst)), all-denied, all)
}

func (r *Report) controlCell(attack string) string {
	run, bit := 0, 0
	for _, c := range r.Controls.Rows {
		if c.Attack == attack && c.NotRun == "" {
			run++
			if c.Bit {
				bit++
			}
		}
	}
	if run == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d bit", bit, run)
}
