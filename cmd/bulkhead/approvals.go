package main

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newApprovalsCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "approvals [AGENT [ID]]",
		Short: "Show the calls of tools that wait for you",
		Long: `Show the calls of tools that a person has to approve (ask.tools in the manifest) and that
wait, the one that is over first on top: since when, until when, and what the call is
given. With an ID more of the input is shown. The agent wrote the input: it is no
instruction, and the text of a field stands behind a bar, or behind > where a line of it
goes on. What cannot be seen is escaped, as in \u200b; a backslash itself is shown as \\.`,
		Example: `  sudo bulkhead approvals
  sudo bulkhead approvals writer xk2m9qa7b
  sudo bulkhead approvals --json`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			q := wire.ApprovalsRequest{Team: team}
			if len(args) > 0 {
				q.Agents = args[:1]
			}
			if len(args) > 1 {
				q.ID = args[1]
			}
			var res wire.ApprovalsResult
			if err := a.client().Call(c.Context(), wire.VerbApprovals, q, &res, a.progress); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			a.showApprovals(res, time.Now(), q.ID != "")
			return nil
		},
	}
	completeAgents(a, c, "")
	return c
}

// showApprovals shows what waits; whole: the input of one call, as far as it is shown
// at all.
func (a *app) showApprovals(res wire.ApprovalsResult, now time.Time, whole bool) {
	n := 0
	cut := false
	for _, one := range res.Agents {
		if one.Problem != "" {
			for _, l := range wrapped("", "  > ", terminal.Line(one.Agent+": "+one.Problem), a.width()) {
				fmt.Fprintln(a.out, l)
			}
		}
		for _, p := range one.Approvals {
			if n > 0 {
				fmt.Fprintln(a.out)
			}
			n++
			cut = a.showApproval(one.Agent, p, now) || cut
		}
	}
	if n == 0 {
		fmt.Fprintln(a.out, "No call waits.")
		return
	}
	next := []string{"`sudo bulkhead approve AGENT ID` does the call once; --session, --for 1h, --always go on allowing it", "`sudo bulkhead deny AGENT ID --reason TEXT`"}
	if cut && !whole {
		next = append(next, "`sudo bulkhead approvals AGENT ID` shows the input of one whole")
	}
	a.next(next...)
}

// showApproval shows one call and says whether some of its input is left out. What
// stands in the first column is ours alone.
func (a *app) showApproval(agent string, p wire.Approval, now time.Time) (cut bool) {
	fmt.Fprintf(a.out, "%s %s  %s\n", terminal.Line(agent), terminal.Line(p.ID), terminal.Line(p.Tool))
	line := func(name, text string) {
		if text != "" {
			for _, l := range wrapped(fmt.Sprintf("  %-9s ", name), strings.Repeat(" ", 10)+"> ", terminal.Line(text), a.width()) {
				fmt.Fprintln(a.out, l)
			}
		}
	}
	if p.Steps > 1 {
		line("step", fmt.Sprintf("%d of %d", p.Step, p.Steps))
	}
	by := "the agent"
	if p.Token != "" {
		by = "token " + p.Token
	}
	line("asked by", by)
	line("since", p.Since.UTC().Format(time.RFC3339)+" ("+ago(now.Sub(p.Since))+" ago)")
	line("until", p.Until.UTC().Format(time.RFC3339))
	if p.Paused {
		line("paused", "approved, it is done once it is resumed, if it is in time")
	}
	if p.Scope == "" {
		line("to", "no destination: a grant for longer says --exact or --wide")
	}
	line("to", p.Scope)
	for _, g := range p.Given {
		fmt.Fprintf(a.out, "  %-9s %s\n", "input", terminal.Line(g.Name+" ("+g.Form+fmt.Sprintf(", %d bytes)", g.Bytes)))
		for _, l := range behindBar(g.Text, a.width()) {
			fmt.Fprintln(a.out, l)
		}
		if g.Cut {
			cut = true
			there := int64(len(g.Text))
			if g.Form == "base64" {
				there = there / 4 * 3
			}
			fmt.Fprintf(a.out, "  %-9s %d bytes more of it are not shown here\n", "", g.Bytes-there)
		}
	}
	return cut
}

// behindBar gives text that an agent wrote as lines to print behind a bar: none is
// wider than the terminal, which would go on in its first column; a line of the text
// that goes on has another mark; and nothing is left out, since somebody decides by it:
// what is not seen as it is is escaped, and so is the backslash, which would look like
// an escape.
func behindBar(text string, width int) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, wrapped("    | ", "    > ", line, width)...)
	}
	return lines
}

// wrapped gives a line as lines that are not wider than the terminal. The marks before
// the first and the others have as many columns as bytes.
func wrapped(first, other, line string, width int) (lines []string) {
	var b strings.Builder
	b.WriteString(first)
	used := len(first)
	for _, c := range line {
		one, n := string(c), 1
		switch {
		case c == '\\':
			one, n = `\\`, 2
		case c == '\t':
			one, n = `\t`, 2
		case !terminal.Visible(c) || unicode.IsMark(c) && b.Len() == len(first): // it would be written over the bar
			if one = fmt.Sprintf(`\u%04x`, c); c > 0xffff {
				one = fmt.Sprintf(`\U%08x`, c)
			}
			n = len(one)
		case c >= 0x80:
			n = 2 // it may be wide
		}
		if used+n > width {
			lines = append(lines, b.String())
			b.Reset()
			b.WriteString(other)
			used = len(other)
		}
		b.WriteString(one)
		used += n
	}
	return append(lines, b.String())
}

// width is that of the terminal, in columns. Where there is none, it is what the least
// has on which somebody may read it.
func (a *app) width() int {
	if w, _, err := term.GetSize(int(a.out.Fd())); err == nil && w > 20 { // #nosec G115 -- a descriptor
		return w
	}
	return 80
}

// ago shows a time that has passed, roughly.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "less than a minute"
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func newApproveCallCommand(a *app) *cobra.Command {
	var once, session, always bool
	q := wire.DecideRequest{Approve: true}
	c := &cobra.Command{
		Use:   "approve AGENT ID [--once | --session | --for 1h | --always]",
		Short: "Have a call that waits done, and maybe later ones without asking",
		Long: `Have a call that waits done: by the agent's gateway, with the token, rate and quota of who
asked for it. The agent finds the result with execution_inspect.

--once, the default, is for this call alone. The others give a grant besides, for later
calls of the same tool by the same caller: --session until the agent's runtime or
gateway starts anew, --for a time, --always until "bulkhead revoke AGENT GRANT". A grant
is bound to the destination of the call, which "bulkhead approvals" shows behind "to";
--exact binds it to this very input, --wide to nothing. Of a call without a destination
one of these two has to be said. Redirects go wherever the manifest allows.`,
		Example: `  sudo bulkhead approve writer xk2m9qa7b
  sudo bulkhead approve writer xk2m9qa7b --for 1h
  sudo bulkhead approve writer xk2m9qa7b --always --exact`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			q.Agent, q.ID = args[0], args[1]
			switch {
			case c.Flags().Changed("for"):
				q.Kind = wire.PermitFor
				if q.For <= 0 {
					return badInput("--for is not a time ahead", "say --for 1h")
				}
			case session:
				q.Kind = wire.PermitSession
			case always:
				q.Kind = wire.PermitAlways
			default:
				q.Kind = wire.PermitOnce
			}
			return a.decideCall(c.Context(), q)
		},
	}
	f := c.Flags()
	f.BoolVar(&once, "once", false, "this call alone (the default)")
	f.BoolVar(&session, "session", false, "and later ones until the runtime or its gateway starts anew")
	f.DurationVar(&q.For, "for", 0, "and later ones for a time, like 1h")
	f.BoolVar(&always, "always", false, "and later ones until the grant is revoked")
	f.BoolVar(&q.Exact, "exact", false, "later ones with this very input only")
	f.BoolVar(&q.Wide, "wide", false, "later ones to any destination that the manifest allows")
	c.MarkFlagsMutuallyExclusive("once", "session", "for", "always")
	c.MarkFlagsMutuallyExclusive("exact", "wide")
	completeAgents(a, c, "")
	return c
}

func newDenyCommand(a *app) *cobra.Command {
	var q wire.DecideRequest
	c := &cobra.Command{
		Use:   "deny AGENT ID [--reason TEXT]",
		Short: "Refuse a call that waits",
		Long: `Refuse a call that waits. The agent is told, with your reason; the same call is not asked
again for an hour.`,
		Example: `  sudo bulkhead deny writer xk2m9qa7b --reason "not to customers"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			q.Agent, q.ID = args[0], args[1]
			return a.decideCall(c.Context(), q)
		},
	}
	c.Flags().StringVar(&q.Reason, "reason", "", "why; the agent reads it")
	completeAgents(a, c, "")
	return c
}

func (a *app) decideCall(ctx context.Context, q wire.DecideRequest) error {
	var err error
	if q.Team, err = a.theTeam(ctx); err != nil {
		return err
	}
	var res wire.DecideResult
	if err := a.client().Call(ctx, wire.VerbDecide, q, &res, a.progress); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	who := terminal.Line(res.Agent + " " + res.ID + ", " + res.Tool)
	if !res.Approved {
		fmt.Fprintln(a.out, who+": denied")
		return nil
	}
	fmt.Fprintln(a.out, who+": approved, "+terminal.Line(res.State))
	if g := res.Grant; g != nil {
		fmt.Fprintln(a.out, "  grant "+terminal.Line(permitText(*g)))
		a.next("`sudo bulkhead revoke " + terminal.Line(res.Agent+" "+g.ID) + "` ends the grant")
	}
	return nil
}

func newGrantsCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "grants [AGENT...]",
		Short: "Show the calls of tools that are allowed without asking you again",
		Long: `Show the grants of tool calls that were given with approve. What is allowed of destinations
for a while is shown by "bulkhead allow --list".`,
		Example: "  sudo bulkhead grants\n  sudo bulkhead grants writer --json",
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var res wire.PermitsResult
			if err := a.client().Call(c.Context(), wire.VerbPermits, wire.AgentRequest{Team: team, Agents: args}, &res, a.progress); err != nil {
				return err
			}
			return a.permits(res)
		},
	}
	completeAgents(a, c, "")
	return c
}

func (a *app) permits(res wire.PermitsResult) error {
	if a.json {
		return a.printJSON(res)
	}
	t := table{head: []string{"AGENT", "GRANT", "TOOL", "COVERS", "UNTIL", "USES", "BY", "AT"}}
	for _, one := range res.Agents {
		if one.Problem != "" {
			fmt.Fprintln(a.out, terminal.Line(one.Agent+": "+one.Problem))
		}
		for _, g := range one.Grants {
			t.add(plain(one.Agent), plain(g.ID), plain(g.Tool), plain(coversText(g)), plain(untilText(g)), plain(fmt.Sprint(g.Uses)), plain(fmt.Sprint(g.By)), plain(g.At.UTC().Format(time.RFC3339)))
		}
	}
	if len(t.rows) == 0 {
		fmt.Fprintln(a.out, "No grants of tool calls.")
		return nil
	}
	t.write(a.out, a.colour)
	return nil
}

func coversText(g wire.Permit) string {
	s := "any input"
	switch {
	case g.Digest != "":
		s = "input " + g.Digest[:min(len(g.Digest), 12)]
	case g.Scope != "":
		s = "to " + g.Scope
	}
	if g.Token != "" {
		s += ", token " + g.Token
	}
	return s
}

func untilText(g wire.Permit) string {
	switch g.Kind {
	case wire.PermitSession:
		return "the runtime starts anew"
	case wire.PermitAlways:
		return "revoked"
	}
	return g.Until.UTC().Format(time.RFC3339)
}

func permitText(g wire.Permit) string {
	return g.ID + ": " + g.Tool + ", " + coversText(g) + ", until " + untilText(g)
}

// revokePermit ends a grant of tool calls: what has no port is no destination.
func (a *app) revokePermit(ctx context.Context, team, agent, id string) error {
	var res wire.PermitsResult
	if err := a.client().Call(ctx, wire.VerbRevokePermit, wire.RevokePermitRequest{Team: team, Agent: agent, ID: id}, &res, a.progress); err != nil {
		return err
	}
	return a.permits(res)
}
