package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/wire"
)

func newUpCommand(a *app) *cobra.Command {
	var file string
	var accept []string
	c := &cobra.Command{
		Use:   "up",
		Short: "Put the manifest in force",
		Long: `Put the manifest in force, and start the warden when it does not run. Safe to
repeat: after a crash at any point "up" ends in the same state.

A layer that this host cannot keep makes "up" refuse (exit 5), unless you accept
its absence; status and verify then keep showing it.`,
		Example: `  sudo bulkhead up
  sudo bulkhead up -f team/bulkhead.yaml
  sudo bulkhead up --accept-missing pod`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.up(c.Context(), file, accept) },
	}
	manifestFlag(c, &file)
	c.Flags().StringArrayVar(&accept, "accept-missing", nil, "go on without this layer (repeatable)")
	return c
}

func (a *app) up(ctx context.Context, file string, accept []string) error {
	m, req, err := a.theManifest(ctx, file)
	if err != nil {
		return err
	}
	req.AcceptMissing = accept
	var res wire.ApplyResult
	for {
		if err := a.ensureWarden(ctx); err != nil {
			return err
		}
		remove, err := a.clones(ctx, m, &req)
		if err == nil {
			err = errors.Join(a.client().Call(ctx, wire.VerbApply, req, &res, a.progress), remove())
		}
		if client.NotRunning(err) {
			continue // the one that greeted was just ending
		}
		if err != nil {
			return err
		}
		break
	}
	if a.json {
		return errors.Join(a.printJSON(res), unwell(res.Status))
	}
	heads := map[wire.Action]string{
		wire.ActionCreate: "created", wire.ActionUpdate: "updated, not restarted", wire.ActionRestart: "restarted",
		wire.ActionRemove: "removed", wire.ActionKeep: "kept", wire.ActionStart: "started",
	}
	a.changes(res.Changes, heads)
	fmt.Fprintln(a.out)
	a.teams(res.Status)
	if err := unwell(res.Status); err != nil {
		a.next("`sudo bulkhead logs AGENT` shows what it printed", "`sudo bulkhead up` may be repeated at any time")
		return err
	}
	if name := fenced(res.Status); name != "" {
		a.next("`sudo bulkhead release " + name + "` ends its fence")
		return nil
	}
	first := m.Agents[0].Name
	a.next("`sudo bulkhead verify` attacks every wall and shows what held",
		"`sudo bulkhead exec "+first+" -- sh` opens a shell inside "+first)
	return nil
}

// unwell makes up end with 1 when an agent does not stand as the manifest asks.
func unwell(s wire.StatusResult) error {
	for _, t := range s.Teams {
		for _, a := range t.Agents {
			if a.State == "failed" || a.State == "degraded" {
				return exitCode(wire.ExitFailed)
			}
		}
	}
	return nil
}
