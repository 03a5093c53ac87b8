package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"bulkhead/internal/wire"
)

func newRestartCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "restart [AGENT...]",
		Short: "Make agents' containers anew",
		Long: "Stop agents and make their containers anew. Without names: all agents of the\n" +
			"team. Data is kept.\n" +
			"comm_adapter restarts the team's adapter: messages wait meanwhile, and none is lost.",
		Example: `  sudo bulkhead restart writer
  sudo bulkhead restart comm_adapter
  sudo bulkhead restart --team pair`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.agents(c.Context(), wire.VerbRestart, args, "`bulkhead status` follows them")
		},
	}
}

func newStopCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "stop [AGENT...]",
		Short: "Stop agents; keep accounts, rules and data",
		Long:  "Stop agents. Without names: all agents of the team. Accounts, rules and data stay.",
		Example: `  sudo bulkhead stop reviewer
  sudo bulkhead stop`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.agents(c.Context(), wire.VerbHalt, args, "`sudo bulkhead restart` starts them again; `sudo bulkhead down` removes them")
		},
	}
}

// agents asks for something that is done to agents and shows how they are now.
func (a *app) agents(ctx context.Context, verb string, names []string, next string) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	var res wire.StatusResult
	if err := a.client().Call(ctx, verb, wire.AgentRequest{Team: team, Agents: names}, &res, a.progress); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	a.teams(res)
	for _, t := range res.Teams {
		for _, one := range t.Agents {
			if one.Fence != nil && (len(names) == 0 || slices.Contains(names, one.Agent)) {
				a.next("`sudo bulkhead release " + one.Agent + "` ends its fence; until then nothing starts it")
				return nil
			}
		}
	}
	a.next(next)
	return nil
}
