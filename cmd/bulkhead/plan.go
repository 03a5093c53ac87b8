package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

func newPlanCommand(a *app) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "plan",
		Short: "Check the manifest and show what would change",
		Long: `Check the manifest and show what "up" would change. Nothing is changed. Without a
running warden the manifest is compared with the one in force, when that can be read;
what needs the warden is then not checked: whether images, folders and files of the host
exist and may be used, and whether the host has room.`,
		Example: `  bulkhead plan
  bulkhead plan -f team/bulkhead.yaml --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.plan(c.Context(), file) },
	}
	manifestFlag(c, &file)
	return c
}

func (a *app) plan(ctx context.Context, file string) error {
	m, req, err := a.theManifest(ctx, file)
	if err != nil {
		return err
	}
	var res wire.PlanResult
	err = a.client().Call(ctx, wire.VerbPlan, req, &res, a.progress)
	against := ""
	if client.NotRunning(err) {
		res, against = a.planAlone(m, req.Presets)
		err = nil
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	if against != "" {
		against += notChecked
	}
	heads := map[wire.Action]string{
		wire.ActionCreate: "create", wire.ActionUpdate: "update, no restart", wire.ActionRestart: "restart",
		wire.ActionRemove: "remove", wire.ActionKeep: "keep", wire.ActionStart: "start",
	}
	fmt.Fprintf(a.out, "Team %s: what `bulkhead up` would do%s\n\n", m.Team, against)
	a.changes(res.Changes, heads)
	a.missing(res.MissingLayers)
	a.showPresets(res.Presets)
	a.showGrants(res.Grants, "\nTemporary destinations, which stay as they are:\n")
	for _, c := range res.Changes {
		if c.Action != wire.ActionKeep {
			a.next("`sudo bulkhead up` puts it in force")
			return nil
		}
	}
	a.next("nothing to do: the manifest is in force")
	return nil
}

// notChecked is what a plan without the warden leaves open: only root can see it.
const notChecked = "\nNot checked without the warden: whether images, folders and files of the host exist and may be used"

// planAlone compares with the manifest in force, which only root can read.
func (a *app) planAlone(m *team.Manifest, presets team.Expansions) (res wire.PlanResult, against string) {
	res = wire.PlanResult{SchemaVersion: 1, Team: m.Team, Presets: presets}
	path := a.host.Manifest(m.Team)
	data, err := os.ReadFile(path) // #nosec G304 -- layout's own path; the team's name was checked
	if err == nil {
		if old, err := team.ParseWith(path, data, presets); err == nil {
			res.Changes = team.Diff(old, m)
			return res, "\n(the warden is not running: compared with " + path + ")"
		}
	}
	res.Changes = team.Diff(nil, m)
	return res, "\n(the warden is not running and no manifest in force can be read)"
}
