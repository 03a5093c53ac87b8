package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"bulkhead/internal/wire"
)

func newRestartCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "restart [AGENT...]",
		Short: "Make agents' containers anew",
		Long:  "Stop agents and make their containers anew. Without names: all agents of the team. Data is kept.",
		Example: `  sudo bulkhead restart writer
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
	a.next(next)
	return nil
}

func newDownCommand(a *app) *cobra.Command {
	var purge, all bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Remove a team from this host",
		Long: `Stop a team and remove everything that Bulkhead made for it: containers, rules,
cgroups, accounts. Agents' data (home, workspace, database) is kept for the next
"up", unless --purge is given.`,
		Example: `  sudo bulkhead down
  sudo bulkhead down --team pair --purge
  sudo bulkhead down --all`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.down(c.Context(), purge, all) },
	}
	c.Flags().BoolVar(&purge, "purge", false, "remove the agents' data as well")
	c.Flags().BoolVar(&all, "all", false, "every team")
	return c
}

func (a *app) down(ctx context.Context, purge, all bool) error {
	req := wire.DownRequest{Purge: purge}
	if all && a.team != "" {
		return badInput("--all and --team exclude one another", "keep one of the two")
	}
	if purge { // also what an earlier down kept, after which no warden runs
		if err := a.ensureWarden(ctx); err != nil {
			return err
		}
	}
	if !all {
		team, err := a.teamToRemove(ctx, purge)
		if err != nil {
			return err
		}
		req.Team = team
	}
	var res wire.DownResult
	if err := a.client().Call(ctx, wire.VerbDown, req, &res, a.progress); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	t := table{head: []string{"", "WHAT"}}
	for _, r := range res.Removed {
		t.add(plain("removed"), plain(r))
	}
	for _, k := range res.Kept {
		t.add(cell{"kept", faint}, plain(k))
	}
	if len(t.rows) == 0 {
		fmt.Fprintln(a.out, "Nothing was there to remove.")
		return nil
	}
	t.write(a.out, a.colour)
	if len(res.Kept) > 0 {
		a.next("`sudo bulkhead up` brings the team back with its data; `down --purge` removes that too")
	}
	return nil
}
