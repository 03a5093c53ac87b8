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

// onceFor is how long a grant for one connection waits to be used.
const onceFor = time.Hour

func newAllowCommand(a *app) *cobra.Command {
	var once, list bool
	var period time.Duration
	c := &cobra.Command{
		Use:   "allow AGENT host:port --for 1h | allow AGENT host:port --once | allow --list",
		Short: "Allow a destination for a while, beside the manifest",
		Long: `Allow one destination for a while. The command ends well only after the kernel was
read back and the agent's gateway knows. It survives a restart of the warden and of
the agent; "down" and a reboot end it. When its time is over, new connections and
those that are open end.

A temporary destination is reached through the agent's HTTP proxy (HTTPS_PROXY is
set for it), and not by its bare name: names and listeners inside are those of the
manifest. --once lets the gateway open one connection; the kernel, which knows
addresses only, lets the agent's dialer connect for at most 10 seconds after it.`,
		Example: `  sudo bulkhead allow writer files.example.com:443 --for 1h
  sudo bulkhead allow writer files.example.com:443 --once
  sudo bulkhead allow --list`,
		Args: cobra.RangeArgs(0, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if list {
				if len(args) > 1 {
					return badInput("--list takes no destination", "`bulkhead allow --list [AGENT]`")
				}
				if once || c.Flags().Changed("for") {
					return badInput("--list allows nothing, so --for and --once mean nothing beside it", "`bulkhead allow --list [AGENT]`")
				}
				return a.listGrants(c.Context(), args)
			}
			if len(args) != 2 {
				return badInput("an agent and a destination are needed", "`bulkhead allow AGENT host:port --for 1h`, or --list")
			}
			switch {
			case period < 0 || c.Flags().Changed("for") && period == 0:
				return badInput("--for is not a time ahead", "say --for 1h")
			case period == 0 && !once:
				return badInput("for how long is not said", "add --for 1h, or --once for one connection; what is needed for good belongs into bulkhead.yaml")
			case period == 0:
				period = onceFor
			}
			if err := destination(args[1]); err != nil {
				return err
			}
			return a.allow(c.Context(), wire.AllowRequest{Agent: args[0], Target: args[1], For: period, Once: once})
		},
	}
	c.Flags().DurationVar(&period, "for", 0, "how long, like 30m or 1h; with --once: how long it waits to be used (default 1h)")
	c.Flags().BoolVar(&once, "once", false, "for one connection")
	c.Flags().BoolVar(&list, "list", false, "show what is allowed for a while")
	return c
}

func newRevokeCommand(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "revoke AGENT host:port | revoke AGENT --all | revoke AGENT GRANT",
		Short: "End a temporary destination, with its connections, or a grant of tool calls",
		Long: `End a temporary destination that "allow" gave, with the connections that are open
through it; all of them with --all; or a grant of tool calls, by the name that "grants"
shows.`,
		Example: `  sudo bulkhead revoke writer files.example.com:443
  sudo bulkhead revoke writer --all
  sudo bulkhead revoke writer gq7xk2m9a    # as "bulkhead grants" shows it`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if all == (len(args) == 2) {
				return badInput("name one destination, or say --all", "`bulkhead allow --list` shows what is allowed for a while")
			}
			if !all && strings.Contains(args[1], ":") {
				if err := destination(args[1]); err != nil {
					return err
				}
			}
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			if !all && !strings.Contains(args[1], ":") {
				return a.revokePermit(c.Context(), team, args[0], args[1])
			}
			req := wire.RevokeRequest{Team: team, Agent: args[0]}
			if !all {
				req.Target = args[1]
			}
			var res wire.GrantsResult
			if err := a.client().Call(c.Context(), wire.VerbRevoke, req, &res, a.progress); err != nil {
				return err
			}
			return a.grants(res)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every temporary destination of the agent")
	return c
}

func (a *app) allow(ctx context.Context, req wire.AllowRequest) error {
	var err error
	if req.Team, err = a.theTeam(ctx); err != nil {
		return err
	}
	var res wire.AllowResult
	if err := a.client().Call(ctx, wire.VerbAllow, req, &res, a.progress); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	fmt.Fprintf(a.out, "%s may reach %s\n", terminal.Line(res.Agent), terminal.Line(grantText(res.Grant)))
	for _, p := range res.Pinned {
		fmt.Fprintln(a.out, "  leads to "+p.String())
	}
	fmt.Fprintln(a.out, "  read back: "+terminal.Line(res.Witness))
	a.next("inside, it is reached through the proxy (HTTPS_PROXY), not by its bare name",
		"`sudo bulkhead revoke "+terminal.Line(res.Agent+" "+res.Grant.Target)+"` ends it")
	return nil
}

func (a *app) listGrants(ctx context.Context, agents []string) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	var res wire.GrantsResult
	if err := a.client().Call(ctx, wire.VerbGrants, wire.AgentRequest{Team: team, Agents: agents}, &res, a.progress); err != nil {
		return err
	}
	return a.grants(res)
}

func (a *app) grants(res wire.GrantsResult) error {
	if a.json {
		return a.printJSON(res)
	}
	if len(res.Agents) == 0 {
		fmt.Fprintln(a.out, "Nothing is allowed beside the manifest.")
		return nil
	}
	a.showGrants(res.Agents, "")
	return nil
}

func (a *app) showGrants(list []wire.AgentGrants, head string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprint(a.out, head)
	for _, one := range list {
		for _, g := range one.Grants {
			fmt.Fprintln(a.out, "  "+terminal.Line(one.Agent+": "+grantText(g)))
		}
	}
}

func grantText(g wire.Grant) string {
	s := g.Target + " until " + g.Until.UTC().Format(time.RFC3339)
	switch {
	case g.Spent:
		s += ", once (used)"
	case g.Once:
		s += ", once"
	}
	return s + fmt.Sprintf(" (allowed by user id %d)", g.By)
}
