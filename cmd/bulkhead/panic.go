package main

import (
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/wire"
)

func newPanicCommand(a *app) *cobra.Command {
	var why string
	c := &cobra.Command{
		Use:   "panic [AGENT...]",
		Short: "Cut agents off and freeze them, at once",
		Long: `Fence agents: the kernel refuses every packet of theirs, those of connections
that stand included, and every process of theirs stops where it is, with its
memory. Without names: every agent of every team, or of --team, and the guests that
were made through front, which are ended and do not wake; a guest can be named, too.

A fence outlives the warden, "up" and the host's restart. It waits for nothing
that the warden does meanwhile. "bulkhead release" ends it, and what was frozen
goes on.`,
		Example: `  sudo bulkhead panic
  sudo bulkhead panic writer --why "it mails strangers"`,
		RunE: func(c *cobra.Command, args []string) error {
			req := wire.FenceRequest{Team: a.team, Agents: args, Why: why}
			if len(args) > 0 {
				team, err := a.theTeam(c.Context())
				if err != nil {
					return err
				}
				req.Team = team
			}
			var res wire.FenceResult
			if err := a.client().Call(c.Context(), wire.VerbFence, req, &res, a.progress); err != nil {
				return err
			}
			return a.fenced(res)
		},
	}
	c.Flags().StringVar(&why, "why", "", "the reason, for the record and for status")
	return c
}

// fenced shows what was fenced, and fails when something still goes on.
func (a *app) fenced(res wire.FenceResult) error {
	var open []string
	tab := table{head: []string{"TEAM", "AGENT", "NETWORK", "PROCESSES"}}
	for _, f := range res.Agents {
		network, processes := cell{"cut off", green}, cell{"frozen", green}
		if !f.CutOff {
			network = cell{"NOT CUT OFF", red}
		}
		if !f.Frozen {
			processes = cell{"NOT FROZEN", red}
		}
		if !f.CutOff || !f.Frozen {
			open = append(open, f.Agent+": "+f.Problem)
		}
		tab.add(plain(f.Team), plain(f.Agent), network, processes)
	}
	if a.json {
		if err := a.printJSON(res); err != nil {
			return err
		}
	} else {
		tab.write(a.out, a.colour)
	}
	if len(open) > 0 {
		return &client.Error{What: "not everything is fenced: " + strings.Join(open, "; "), Mend: "`sudo bulkhead down` ends every process", Exit: wire.ExitFailed}
	}
	a.next("`bulkhead release AGENT` lets an agent go on; `sudo bulkhead stop` ends its processes and keeps the fence")
	return nil
}

func newReleaseCommand(a *app) *cobra.Command {
	guests := false
	c := &cobra.Command{
		Use:   "release AGENT...",
		Short: "End the fence of agents",
		Long: `Let fenced agents go on: their rules come back, and their processes go on where they
were stopped. Guests were ended, and wake again when they are called.`,
		Example: "  sudo bulkhead release writer\n  sudo bulkhead release --guests",
		RunE: func(c *cobra.Command, args []string) error {
			if guests {
				args = append(args, wire.Guests)
			}
			if len(args) == 0 {
				return badInput("no agent is named", "name each agent that may go on; bulkhead status shows which are fenced")
			}
			return a.agents(c.Context(), wire.VerbUnfence, args, "`bulkhead status` follows them")
		},
	}
	c.Flags().BoolVar(&guests, "guests", false, "those that were made through front")
	return c
}
