package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"bulkhead/internal/dial"
	"bulkhead/internal/team"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// suggestions is the JSON form of egress suggest.
type suggestions struct {
	SchemaVersion int            `json:"schemaVersion"`
	Team          string         `json:"team"`
	Agent         string         `json:"agent"`
	Egress        []suggestion   `json:"egress"`
	Left          []notSuggested `json:"left,omitempty"`
}

type suggestion struct {
	Target string `json:"target"`
	Count  uint64 `json:"count"`
}

// notSuggested was refused and no line would allow it.
type notSuggested struct {
	Target string `json:"target"`
	Why    string `json:"why"`
}

func newEgressCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "egress",
		Short: "Work on an agent's list of destinations",
		Long: `Work on an agent's list of destinations (egress in the manifest). To try one for a
while, see "allow"; to see what was refused, "denials".`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "suggest AGENT",
		Short: "Print the manifest lines that would allow what was refused",
		Long: `Print the lines of bulkhead.yaml that would allow the destinations that an agent was
refused: the very hosts and ports, never a wildcard. Read each one first: an agent
that was taken over asks for what its attacker wants.`,
		Example: `  sudo bulkhead egress suggest writer`,
		Args:    cobra.ExactArgs(1),
		RunE:    func(c *cobra.Command, args []string) error { return a.suggest(c.Context(), args[0]) },
	})
	return c
}

func (a *app) suggest(ctx context.Context, agent string) error {
	res, err := a.collectDenials(ctx, []string{agent}, 0)
	if err != nil {
		return err
	}
	out := suggestions{SchemaVersion: 1, Team: res.Team, Agent: agent, Egress: []suggestion{}}
	for _, one := range res.Agents {
		for _, d := range one.Denials {
			if !suggestable(d.Reason.Code) {
				out.Left = append(out.Left, notSuggested{d.Target, d.Reason.Mend})
				continue
			}
			target, err := manifestLine(d.Target)
			if err != nil {
				out.Left = append(out.Left, notSuggested{d.Target, err.Error()})
				continue
			}
			// The manifest may allow it by now; the warden knows.
			why, err := a.why(ctx, wire.WhyRequest{Team: res.Team, Agent: agent, What: target})
			if err != nil {
				return err
			}
			if why.Verdict == wire.WhyDenied && suggestable(why.Code) {
				out.Egress = append(out.Egress, suggestion{target, d.Count})
			}
		}
	}
	if a.json {
		return a.printJSON(out)
	}
	a.showSuggestions(out)
	return nil
}

// manifestLine gives a refused target as the manifest would list it.
func manifestLine(target string) (string, error) {
	d, err := team.ParseDestination(target)
	if err != nil {
		return "", err
	}
	if d.Wild() {
		return "", fmt.Errorf("%s is a wildcard", d.Target())
	}
	if d.Address.IsValid() {
		if special := dial.Special(d.Address); special != "" {
			return "", fmt.Errorf("it is in %s, where hosts keep what is theirs alone; list it by hand if it is meant", special)
		}
	}
	return d.Target(), nil
}

func (a *app) showSuggestions(s suggestions) {
	if len(s.Egress) == 0 {
		fmt.Fprintln(a.out, "# Nothing was refused that a line in egress would allow.")
	} else {
		fmt.Fprintf(a.out, "# agents.%s.egress, below what is there:\n", terminal.Line(s.Agent))
		for _, e := range s.Egress {
			fmt.Fprintf(a.out, "      - %s # refused %d times\n", terminal.Line(strconv.Quote(e.Target)), e.Count)
		}
	}
	for _, l := range s.Left {
		fmt.Fprintf(a.out, "# not by a line: %s: %s\n", terminal.Line(l.Target), terminal.Line(l.Why))
	}
}
