package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newExecutionCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "execution",
		Short: "Show, pause, resume and cancel what agents have under way",
		Long: `An execution is calls of an agent's tools that its gateway does one after the other, by
themselves: several that the agent asked for at once (execution_start), or one that waits
for you.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		newExecutionListCommand(a),
		newExecutionActCommand(a, wire.ExecutionPause, "Have an execution not go on after the step that is being done; only you resume it then"),
		newExecutionActCommand(a, wire.ExecutionResume, "Have a paused execution go on, whoever paused it"),
		newExecutionActCommand(a, wire.ExecutionCancel, "End an execution: what has not begun is not done, what is being done is stopped where it can be"),
	)
	return c
}

func newExecutionListCommand(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "list [AGENT...]",
		Short:   "Show the executions that have not ended, the newest first",
		Example: "  sudo bulkhead execution list\n  sudo bulkhead execution list writer --all --json",
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var res wire.ExecutionsResult
			if err := a.client().Call(c.Context(), wire.VerbExecutions, wire.ExecutionsRequest{Team: team, Agents: args, All: all}, &res, a.progress); err != nil {
				return err
			}
			return a.executions(res)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "those that ended, too")
	completeAgents(a, c, "")
	return c
}

func newExecutionActCommand(a *app, action, short string) *cobra.Command {
	c := &cobra.Command{
		Use:     action + " AGENT ID",
		Short:   short,
		Example: "  sudo bulkhead execution " + action + " writer xk2m9qa7b",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.actOn(c.Context(), wire.ExecutionRequest{Agent: args[0], ID: args[1], Action: action})
		},
	}
	completeAgents(a, c, "")
	return c
}

func (a *app) actOn(ctx context.Context, q wire.ExecutionRequest) error {
	var err error
	if q.Team, err = a.theTeam(ctx); err != nil {
		return err
	}
	var res wire.ExecutionsResult
	if err := a.client().Call(ctx, wire.VerbExecution, q, &res, a.progress); err != nil {
		return err
	}
	return a.executions(res)
}

func (a *app) executions(res wire.ExecutionsResult) error {
	if a.json {
		return a.printJSON(res)
	}
	t := table{head: []string{"AGENT", "ID", "STATE", "STEPS", "NOW", "SINCE", "DETAIL"}}
	for _, one := range res.Agents {
		if one.Problem != "" {
			fmt.Fprintln(a.out, terminal.Line(one.Agent+": "+one.Problem))
		}
		for _, x := range one.Executions {
			done, now, why := 0, "", x.Detail
			for _, s := range x.Steps {
				switch {
				case s.State == "done":
					done++
				case now == "":
					now = fmt.Sprintf("%d: %s %s", s.Step, s.Tool, s.State)
					if why == "" {
						why = s.Why
					}
				}
			}
			t.add(plain(one.Agent), plain(x.ID), cell{x.State, executionPaint(x.State)}, plain(fmt.Sprintf("%d of %d done", done, len(x.Steps))), plain(now),
				plain(x.Created.UTC().Format(time.RFC3339)), plain(clip(strings.ReplaceAll(why, "\n", " "), 80)))
		}
	}
	if len(t.rows) == 0 {
		fmt.Fprintln(a.out, "No executions.")
		return nil
	}
	t.write(a.out, a.colour)
	return nil
}

func executionPaint(state string) string {
	switch state {
	case "completed":
		return green
	case "failed", "partially_completed":
		return red
	case "waiting_for_user", "paused":
		return yellow
	}
	return ""
}
