package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newVerifyCommand(a *app) *cobra.Command {
	var noControls, rows, watch bool
	var every time.Duration
	var engine string
	c := &cobra.Command{
		Use:   "verify [AGENT...]",
		Short: "Attack every wall and show what held",
		Long: `Attack the team from each agent's runtime, gateway, bare account and code, and from its
servers, and show which layer refused: one line for each attack, with how many of its
attempts were denied from where; --rows shows each attempt with its evidence. Each
attack has a control: with that layer off in a decoy it must succeed, or the refusal
proves nothing. Ends with 1 when an attack succeeded or a control did not bite. The
evidence command keeps the result, signed.`,
		Example: `  sudo bulkhead verify
  sudo bulkhead verify writer --no-controls
  sudo bulkhead verify --engine podman
  sudo bulkhead verify --json > evidence.json
  sudo bulkhead verify --watch`,
		RunE: func(c *cobra.Command, args []string) error {
			if watch {
				if len(args) > 0 || rows || engine != "" || noControls {
					return badInput("--watch is for a whole team, has no rows, and always makes the controls of its attacks", "leave out the agents, --engine, --rows and --no-controls")
				}
				if every < time.Minute {
					return badInput(every.String()+" is less than a minute", "say --every 1m, or more")
				}
				return a.verifyWatch(c.Context(), every)
			}
			if c.Flags().Changed("every") {
				return badInput("--every is how often --watch looks", "add --watch, or leave out --every")
			}
			if err := oneOf("engine", engine, "cell", "podman"); err != nil {
				return err
			}
			if engine != "" && len(args) > 0 {
				return badInput("agents and --engine are both named", "keep one of the two")
			}
			return a.verify(c.Context(), wire.VerifyRequest{Agents: args, Engine: engine, NoControls: noControls}, rows)
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "go on: prove the team again after changes and by the clock, make a few attacks now and then, and say what drifts")
	c.Flags().DurationVar(&every, "every", time.Minute, "with --watch: how often at least")
	c.Flags().StringVar(&engine, "engine", "", "attack from the agents with this engine, cell or podman; the matrix is the same for both")
	c.Flags().BoolVar(&rows, "rows", false, "show every attempt with its evidence")
	c.Flags().BoolVar(&noControls, "no-controls", false, "skip the decoys: faster, but proves less")
	return c
}

// matrix is what verify shows of the report; the report itself is printed as
// it came (docs/contracts/verify.md). The types are not those of
// internal/evidence: linking the attacks would make the command line large.
type matrix struct {
	SchemaVersion int             `json:"schemaVersion"`
	Team          string          `json:"team"`
	Agents        json.RawMessage `json:"agents"`
	Attacks       int             `json:"attacks"`
	Denied        int             `json:"denied"`
	Succeeded     int             `json:"succeeded"`
	Unproven      int             `json:"unproven"`
	NotRun        int             `json:"not_run"`
	Notes         []string        `json:"notes"`
	LeftOut       []leftOut       `json:"leftOut"`
	Controls      struct {
		Run    int `json:"run"`
		Bit    int `json:"bit"`
		NotRun int `json:"not_run"`
		Rows   []struct {
			Attack    string `json:"attack"`
			Mechanism string `json:"mechanism"`
			Position  string `json:"position"`
			On        string `json:"on"`
			Without   string `json:"without"`
			Bit       bool   `json:"bit"`
			NotRun    string `json:"notRun"`
		} `json:"rows"`
	} `json:"controls"`
	Exhaustion []struct {
		Attack    string `json:"attack"`
		Mechanism string `json:"mechanism"`
		On        string `json:"on"`
		Without   string `json:"without"`
		Bit       bool   `json:"bit"`
		NotRun    string `json:"notRun"`
		Alone     string `json:"alone"`
		Beside    string `json:"beside"`
	} `json:"exhaustion"`
	Rows []attempt `json:"rows"`
}

// leftOut is what the team has nothing of, so that there are no rows for it.
type leftOut struct {
	Why     string   `json:"why"`
	Of      []string `json:"of"`
	Attacks []string `json:"attacks"`
	Rows    int      `json:"rows"`
}

// attempt is one attack from one position of one agent.
type attempt struct {
	Agent    string `json:"agent"`
	Position string `json:"position"`
	Target   string `json:"target"`
	Attack   string `json:"attack"`
	Layer    string `json:"layer"`
	Verdict  string `json:"verdict"`
	Evidence string `json:"evidence"`
}

// judge is the verdict on a whole report. A report in which nothing was tried
// proves nothing.
func (m *matrix) judge() error {
	for _, x := range m.Exhaustion {
		if !x.Bit && x.NotRun == "" {
			return exitCode(wire.ExitFailed)
		}
	}
	if m.Succeeded > 0 || m.Unproven > 0 || m.Controls.Bit < m.Controls.Run || m.Denied == 0 {
		return exitCode(wire.ExitFailed)
	}
	return nil
}

func (a *app) verify(ctx context.Context, req wire.VerifyRequest, rows bool) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	var raw json.RawMessage
	req.Team = team
	if err := a.client().Call(ctx, wire.VerbVerify, req, &raw, a.progress); err != nil {
		return err
	}
	var m matrix
	if err := json.Unmarshal(raw, &m); err != nil || m.SchemaVersion != 1 {
		return &client.Error{What: fmt.Sprintf("the report cannot be read (schemaVersion %d): %v", m.SchemaVersion, err), Mend: "use the bulkhead program of the warden's build", Exit: wire.ExitFailed, Err: err}
	}
	if a.json {
		if err := a.printJSON(raw); err != nil {
			return err
		}
		return m.judge()
	}
	a.showMatrix(&m, req.NoControls, rows)
	return m.judge()
}

func (a *app) showMatrix(m *matrix, noControls, rows bool) {
	fmt.Fprintf(a.out, "Team %s\n\n", terminal.Line(m.Team))
	if rows {
		a.showAttempts(m.Rows)
	} else {
		a.showAttacks(m.Rows)
		var odd []attempt
		for _, r := range m.Rows {
			if r.Verdict != "denied" {
				odd = append(odd, r)
			}
		}
		if len(odd) > 0 {
			fmt.Fprintln(a.out)
			a.showAttempts(odd)
		}
	}
	fmt.Fprintf(a.out, "\n%d attacks: %d denied, %d succeeded, %d unproven, %d not run\n", m.Attacks, m.Denied, m.Succeeded, m.Unproven, m.NotRun)
	a.showControls(m, noControls)
	a.showExhaustion(m)
	for _, n := range m.Notes {
		fmt.Fprintln(a.out, "Note: "+terminal.Line(n))
	}
	a.showLeftOut(m.LeftOut)
	switch {
	case m.Succeeded > 0:
		a.next("stop the team (`sudo bulkhead stop`) until each attack that succeeded is understood")
	case m.Unproven > 0:
		a.next("an attack that is unproven was neither refused as expected nor seen to succeed: see its evidence above")
	case m.Controls.Bit < m.Controls.Run:
		a.next("a control that did not bite proves nothing: see it above, and report it with --json")
	case m.Denied == 0:
		a.next("nothing was tried, so nothing is proved: see why in the rows above")
	case m.NotRun > 0:
		a.next("what was not run is not proved: the rows above say what this host lacks")
	default:
		a.next("keep the evidence: `sudo bulkhead verify --json > evidence.json`")
	}
}

// showLeftOut says once what is no part of the matrix.
func (a *app) showLeftOut(list []leftOut) {
	if len(list) == 0 {
		return
	}
	rows, kinds := 0, map[string]bool{}
	for _, l := range list {
		rows += l.Rows
		for _, id := range l.Attacks {
			kinds[id] = true
		}
	}
	fmt.Fprintf(a.out, "\nNot covered, since the team has nothing of the kind: %d attempts of %d attacks\n", rows, len(kinds))
	t := table{head: []string{"WHY", "AGENTS", "ATTEMPTS", "ATTACKS"}}
	for _, l := range list {
		t.add(plain(l.Why), plain(clip(strings.Join(l.Of, ", "), 60)), plain(strconv.Itoa(l.Rows)), plain(clip(strings.Join(l.Attacks, ", "), 80)))
	}
	t.write(a.out, a.colour)
}

func (a *app) showAttempts(rows []attempt) {
	t := table{head: []string{"AGENT", "FROM", "ATTACK", "TARGET", "VERDICT", "LAYER", "EVIDENCE"}}
	paint := map[string]string{"denied": green, "succeeded": red, "unproven": red, "not_run": yellow}
	for _, r := range rows {
		t.add(plain(r.Agent), plain(r.Position), plain(r.Attack), plain(r.Target),
			cell{strings.ReplaceAll(r.Verdict, "_", " "), paint[r.Verdict]}, plain(r.Layer), plain(clip(r.Evidence, 80)))
	}
	t.write(a.out, a.colour)
}

// showAttacks sums the attempts up: a line for each attack, and in the column
// of each position how many of its attempts were denied.
func (a *app) showAttacks(rows []attempt) {
	positions := []string{"runtime", "gateway", "account"}
	for _, p := range []string{"code", "server"} { // which not every team has
		if slices.ContainsFunc(rows, func(r attempt) bool { return r.Position == p }) {
			positions = append(positions, p)
		}
	}
	type sum struct{ denied, tried int }
	sums := map[string]map[string]sum{}
	var order []attempt
	for _, r := range rows {
		if sums[r.Attack] == nil {
			sums[r.Attack] = map[string]sum{}
			order = append(order, r)
		}
		s := sums[r.Attack][r.Position]
		s.tried++
		if r.Verdict == "denied" {
			s.denied++
		}
		sums[r.Attack][r.Position] = s
	}
	t := table{head: []string{"ATTACK", "LAYER"}}
	for _, p := range positions {
		t.head = append(t.head, "FROM "+strings.ToUpper(p))
	}
	for _, r := range order {
		line := []cell{plain(r.Attack), plain(r.Layer)}
		for _, p := range positions {
			switch s := sums[r.Attack][p]; {
			case s.tried == 0:
				line = append(line, cell{"-", faint})
			case s.denied == s.tried:
				line = append(line, cell{fmt.Sprintf("denied %d/%d", s.denied, s.tried), green})
			default:
				line = append(line, cell{fmt.Sprintf("denied %d/%d", s.denied, s.tried), red})
			}
		}
		t.add(line...)
	}
	t.write(a.out, a.colour)
}

// showControls sums the decoys up and names those that did not bite.
func (a *app) showControls(m *matrix, skipped bool) {
	if skipped {
		fmt.Fprintln(a.out, "Controls were skipped: a refusal may have another cause than the layer named.")
		return
	}
	fmt.Fprintf(a.out, "%d controls: %d bit (with the layer off, the attack succeeds), %d not run\n", m.Controls.Run, m.Controls.Bit, m.Controls.NotRun)
	t := table{head: []string{"CONTROL", "FROM", "MECHANISM", "RESULT", "WITH IT", "WITHOUT IT"}}
	for _, c := range m.Controls.Rows {
		switch {
		case c.NotRun != "":
			t.add(plain(c.Attack), plain(c.Position), plain(c.Mechanism), cell{"not run", yellow}, plain(clip(c.NotRun, 80)), plain(""))
		case !c.Bit:
			t.add(plain(c.Attack), plain(c.Position), plain(c.Mechanism), cell{"did not bite", red}, plain(clip(c.On, 40)), plain(clip(c.Without, 40)))
		}
	}
	if len(t.rows) > 0 {
		fmt.Fprintln(a.out)
		t.write(a.out, a.colour)
	}
}

// showExhaustion says what held those who took too much, and what their
// neighbour felt.
func (a *app) showExhaustion(m *matrix) {
	if len(m.Exhaustion) == 0 {
		return
	}
	t := table{head: []string{"TAKING TOO MUCH", "MECHANISM", "RESULT", "HOW", "ITS NEIGHBOUR"}}
	for _, x := range m.Exhaustion {
		switch {
		case x.NotRun != "":
			t.add(plain(x.Attack), plain(x.Mechanism), cell{"not run", yellow}, plain(clip(x.NotRun, 60)), plain(""))
		case x.Bit:
			t.add(plain(x.Attack), plain(x.Mechanism), cell{"held", green}, plain(clip(x.On, 60)), plain(clip(x.Beside, 80)))
		default:
			t.add(plain(x.Attack), plain(x.Mechanism), cell{"not held", red}, plain(clip(x.On+" / "+x.Without, 60)), plain(clip(x.Beside, 80)))
		}
	}
	fmt.Fprintln(a.out)
	t.write(a.out, a.colour)
}

func clip(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
