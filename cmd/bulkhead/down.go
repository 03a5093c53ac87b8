package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/wire"
)

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
	var res wire.DownResult
	if !all {
		team, err := a.teamToRemove(ctx, purge)
		if err != nil {
			return err
		}
		if team == "" {
			return a.nothingRemoved(res)
		}
		req.Team = team
	}
	// What a crash or a down without --purge left can be removed while no
	// warden runs: it is started for that, and ends by itself.
	if err := a.ensureWarden(ctx); err != nil {
		return err
	}
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
		return a.nothingRemoved(res)
	}
	t.write(a.out, a.colour)
	if len(res.Kept) > 0 {
		a.next("`sudo bulkhead up` brings the team back with its data; `down --purge` removes that too")
	}
	return nil
}

// teamToRemove is theTeam, or with purge the only team that has kept data.
// Empty means that there is nothing.
func (a *app) teamToRemove(ctx context.Context, purge bool) (string, error) {
	team, err := a.theTeam(ctx)
	var e *client.Error
	switch {
	case err == nil:
		return team, nil
	case !client.NotRunning(err) && (!errors.As(err, &e) || !strings.HasPrefix(e.What, noTeamIsUp)):
		return "", err
	case os.Geteuid() != 0:
		return "", &client.Error{What: "no team is up, and only root can see what is kept", Mend: "run the command with sudo", Exit: wire.ExitRefused}
	case !purge:
		return "", nil
	}
	kept, err := os.ReadDir(filepath.Dir(a.host.Team("x")))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	switch len(kept) {
	case 0:
		return "", nil
	case 1:
		return kept[0].Name(), nil
	}
	return "", badInput(fmt.Sprintf("data of %d teams is kept", len(kept)), "say which with --team, or remove all of it with --all")
}

func (a *app) nothingRemoved(res wire.DownResult) error {
	if a.json {
		res.SchemaVersion, res.Teams, res.Removed = 1, []string{}, []string{}
		return a.printJSON(res)
	}
	fmt.Fprintln(a.out, "Nothing was there to remove.")
	return nil
}
