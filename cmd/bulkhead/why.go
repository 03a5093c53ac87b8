package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newWhyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "why AGENT WHAT",
		Short: "Say whether an agent may do something, and which rule decides",
		Long: `Say whether an agent may do something, or what bounds it: which layer decides, by
which rule, and the exact change that would allow it. The answer comes from the code
that decides; nothing is tried or changed. WHAT is one of

  host:port                  may it reach this destination?
  /path                      may it use this path (as it is inside)?
  syscall                    may it make this system call, like ptrace?
  message:AGENT[/TYPE]       may it write to this agent?
  message:CHANNEL[/TYPE]     may it write to this channel?
  topic:NAME[/publish|/read] may it use this public topic?
  tool:NAME                  may it call this tool, or this group of tools?
  secret:NAME                does it have this secret?
  limit:NAME                 what is this limit, like memory?`,
		Example: `  sudo bulkhead why writer api.example.com:443
  sudo bulkhead why writer /etc/shadow
  sudo bulkhead why writer ptrace
  sudo bulkhead why writer message:reviewer/escalation
  sudo bulkhead why writer topic:builds/publish
  sudo bulkhead why writer tool:fs_write
  sudo bulkhead why writer limit:memory`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := question(args[1]); err != nil {
				return err
			}
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			res, err := a.why(c.Context(), wire.WhyRequest{Team: team, Agent: args[0], What: args[1]})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			a.showWhy(res)
			return nil
		},
	}
}

func (a *app) why(ctx context.Context, req wire.WhyRequest) (wire.WhyResult, error) {
	var res wire.WhyResult
	return res, a.client().Call(ctx, wire.VerbWhy, req, &res, a.progress)
}

func (a *app) showWhy(res wire.WhyResult) {
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(a.out, "  %-8s %s\n", name, terminal.Line(text))
		}
	}
	verdict := res.Verdict
	if verdict == wire.WhyDepends {
		verdict = "it depends"
	}
	fmt.Fprintf(a.out, "%s, %s: %s\n", terminal.Line(res.Agent), terminal.Line(res.What), terminal.Line(verdict))
	layer := string(res.Layer)
	if res.Code != "" {
		layer += " (" + string(res.Code) + ")"
	}
	line("layer", layer)
	line("rule", res.Rule)
	if res.Via != "" {
		line("through", res.Via+", which is asked for the very name; the kernel knows the proxy's address alone")
	}
	line("leads to", joinAddresses(res.Addresses))
	line("to allow", res.Mend)
}

func joinAddresses(addrs []netip.Addr) string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return strings.Join(out, ", ")
}
