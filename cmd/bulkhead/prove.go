package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newProveCommand(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "prove",
		Short: "Say exactly what the kernel lets the team do",
		Long: `Read back what the kernel holds and say exactly, not by samples, what it lets each agent
do: every packet that the host's rules let out, every system call of every thread,
privileges, namespaces, ids, what is writable, limits; and the same of the servers on
which the team relies. Nothing is attacked or changed. Ends with 1 when a statement does
not hold.`,
		Example: `  sudo bulkhead prove
  sudo bulkhead prove --read
  sudo bulkhead prove --json > proof.json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.prove(c.Context(), all) },
	}
	c.Flags().BoolVar(&all, "read", false, "show what was read for each statement")
	return c
}

// proof is what prove shows of the report; the report itself is printed as it
// came (docs/contracts/prove.md).
type proof struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Kernel        string `json:"kernel"`
	Held          int    `json:"held"`
	Failed        int    `json:"failed"`

	Fenced     []string `json:"fenced"`
	Statements []struct {
		ID       string `json:"id"`
		Agent    string `json:"agent"`
		Says     string `json:"says"`
		Holds    bool   `json:"holds"`
		Premises []struct {
			Says  string `json:"says"`
			Holds bool   `json:"holds"`
			Why   string `json:"why"`
		} `json:"premises"`
		Read    []string `json:"read"`
		Against []string `json:"against"`
	} `json:"statements"`
}

// judge is the verdict. A report that states nothing proves nothing.
func (p *proof) judge() error {
	if p.Failed > 0 || p.Held == 0 {
		return exitCode(wire.ExitFailed)
	}
	return nil
}

func (a *app) prove(ctx context.Context, all bool) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := a.client().Call(ctx, wire.VerbProve, wire.TeamRequest{Team: team}, &raw, a.progress); err != nil {
		return err
	}
	var p proof
	if err := json.Unmarshal(raw, &p); err != nil || p.SchemaVersion != 1 {
		return &client.Error{What: fmt.Sprintf("the report cannot be read (schemaVersion %d): %v", p.SchemaVersion, err), Mend: "use the bulkhead program of the warden's build", Exit: wire.ExitFailed, Err: err}
	}
	if a.json {
		if err := a.printJSON(raw); err != nil {
			return err
		}
		return p.judge()
	}
	a.showProof(&p, all)
	return p.judge()
}

func (a *app) showProof(p *proof, all bool) {
	fmt.Fprintf(a.out, "Team %s on kernel %s\n\n", terminal.Line(p.Team), terminal.Line(p.Kernel))
	t := table{head: []string{"AGENT", "STATEMENT", "RESULT", "SAYS"}}
	for _, s := range p.Statements {
		result := cell{"holds", green}
		if !s.Holds {
			result = cell{"does not hold", red}
		}
		t.add(plain(s.Agent), plain(s.ID), result, plain(s.Says))
		for _, pr := range s.Premises {
			if !pr.Holds {
				t.add(plain(""), plain(""), cell{"premise", red}, plain(pr.Says+": "+pr.Why))
			}
		}
		for _, x := range s.Against {
			t.add(plain(""), plain(""), cell{"against it", red}, plain(x))
		}
		if all {
			for _, x := range s.Read {
				t.add(plain(""), plain(""), cell{"read", faint}, plain(x))
			}
		}
	}
	t.write(a.out, a.colour)
	fmt.Fprintf(a.out, "\n%d statements: %d hold, %d do not\n", p.Held+p.Failed, p.Held, p.Failed)
	switch {
	case len(p.Fenced) > 0:
		a.next(terminal.Line(strings.Join(p.Fenced, ", ")) + " is fenced, which is why statements about it do not hold; `sudo bulkhead release " + terminal.Line(p.Fenced[0]) + "` brings it back, then prove again")
	case p.Failed > 0:
		a.next("a statement that does not hold says above what contradicts it: stop the team (`sudo bulkhead stop`) until that is understood")
	case p.Held == 0:
		a.next("nothing was stated, so nothing is proved")
	default:
		a.next("what rules and filters cannot show is for attacks: `sudo bulkhead verify`")
	}
}
