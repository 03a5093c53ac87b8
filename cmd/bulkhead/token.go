package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"bulkhead/internal/control/protocol"
	"bulkhead/internal/terminal"
)

// defaultOverlap is as long as a token lives that nobody said more of, so that a
// rotation ends none of those.
const defaultOverlap = 30 * 24 * time.Hour

func newTokenCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Issue, list and revoke tokens for programs that speak as an agent; make new keys",
		Long: `A token lets a program that is no agent call one agent's tools: through front, when
the manifest has it, or from inside. It never allows more than the manifest gives the
agent. Gateways hear within ten seconds what is revoked, at once when they can be told,
and take no token at all when they have heard nothing for thirty.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newTokenIssueCommand(a), newTokenListCommand(a), newTokenRevokeCommand(a), newTokenRotateCommand(a))
	return c
}

func newTokenIssueCommand(a *app) *cobra.Command {
	var q protocol.Issue
	var domains []string
	var out string
	c := &cobra.Command{
		Use:   "issue AGENT",
		Short: "Make a token, and print it or write it to a file",
		Long: `Make a token for one agent and print it, or write it into a new file that only you
can read. It is kept nowhere else: a token that is lost is revoked and made anew.`,
		Example: `  sudo bulkhead token issue writer --out writer.token
  sudo bulkhead token issue writer --for 1h --rate 20 --domains api.example.com`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("domains") {
				q.Domains = &domains
			}
			if c.Flags().Changed("for") && q.For < time.Second {
				return badInput(fmt.Sprintf("a token cannot live for %s", q.For), "write 30m or 1h")
			}
			if q.Rate < 0 || q.Memory < 0 || q.Storage < 0 {
				return badInput("--rate, --memory and --storage are bounds, and one is below 0", "leave it out for the manifest's own")
			}
			if err := oneOf("alg", q.Alg, "EdDSA", "RS256", "HS256"); err != nil {
				return err
			}
			q.Agent = args[0]
			return a.issue(c.Context(), q, out)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&domains, "domains", nil, "hosts that net tools may reach with it, below the manifest's; \"\" for none")
	f.Int64Var(&q.Memory, "memory", 0, "bytes of mem, vec and events that the agent may use when called with it, when fewer than the manifest's")
	f.Int64Var(&q.Storage, "storage", 0, "the same for fs and db")
	f.IntVar(&q.Rate, "rate", 0, "calls per minute, when fewer than the manifest's")
	f.DurationVar(&q.For, "for", 0, "how long it lives, like 1h (default 30 days)")
	f.StringVar(&q.Alg, "alg", "", "EdDSA (default), RS256, or HS256, which is taken through front alone")
	f.StringVar(&out, "out", "", "write it into this new file, mode 0600, instead of printing it")
	completeAgents(a, c, "")
	return c
}

func (a *app) issue(ctx context.Context, q protocol.Issue, out string) error {
	var err error
	if q.Team, err = a.theTeam(ctx); err != nil {
		return err
	}
	var f *os.File
	if out != "" {
		// First: a token that could not be written would have to be revoked.
		f, err = os.OpenFile(out, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600) // #nosec G304 -- the operator's own choice
		if err != nil {
			return badInput("the token cannot be written: "+err.Error(), "name a file that does not exist yet")
		}
		defer func() { _ = f.Close() }()
	}
	var r protocol.Issued
	if err := a.client().Tokens(ctx, protocol.VerbIssue, q, &r); err != nil {
		if f != nil {
			_ = os.Remove(out)
		}
		return err
	}
	if f != nil {
		_, err := f.WriteString(r.Token + "\n")
		if err = errors.Join(err, f.Sync()); err != nil {
			return errors.Join(fmt.Errorf("token %s could not be written, revoke it: %w", r.ID, err), os.Remove(out))
		}
		r.Token = ""
	}
	if a.json {
		return a.printJSON(r)
	}
	if f == nil {
		fmt.Fprintln(a.out, r.Token)
	} else {
		fmt.Fprintf(a.out, "token %s for %s is in %s, and lives until %s\n", terminal.Line(r.ID), terminal.Line(r.Agent), terminal.Line(out), r.Expires.UTC().Format(time.RFC3339))
	}
	a.waiting(r.Waiting, "take it once they are told")
	return nil
}

// waiting tells, beside the result, whom the warden could not tell.
func (a *app) waiting(who []string, what string) {
	if len(who) > 0 {
		fmt.Fprintln(a.err, terminal.Line("not told yet: "+strings.Join(who, ", ")+"; they "+what))
	}
}

func newTokenListCommand(a *app) *cobra.Command {
	var q protocol.List
	c := &cobra.Command{
		Use:     "list [AGENT]",
		Short:   "Show the tokens that have not expired",
		Example: "  sudo bulkhead token list\n  sudo bulkhead token list writer --all --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			q.Team = a.team
			if len(args) == 1 {
				q.Agent = args[0]
			}
			var r protocol.Tokens
			if err := a.client().Tokens(c.Context(), protocol.VerbList, q, &r); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			if len(r.Tokens) == 0 {
				fmt.Fprintln(a.out, "no tokens")
				return nil
			}
			t := tokenTable(r.Tokens)
			t.write(a.out, a.colour)
			return nil
		},
	}
	c.Flags().BoolVar(&q.All, "all", false, "revoked ones too")
	completeAgents(a, c, "")
	return c
}

// tokenTable shows tokens. Bounds are in the units of issue's flags.
func tokenTable(all []protocol.Token) table {
	t := table{head: []string{"ID", "TEAM", "AGENT", "EXPIRES", "ALG", "RATE", "MEMORY", "STORAGE", "DOMAINS", "BY", "STATE"}}
	bound := func(n int64) cell {
		if n == 0 {
			return plain("manifest")
		}
		return plain(strconv.FormatInt(n, 10))
	}
	for _, one := range all {
		state, domains := cell{"live", green}, "manifest"
		if one.Revoked != nil {
			state = cell{"revoked " + one.Revoked.UTC().Format(time.RFC3339), red}
		}
		if one.Domains != nil {
			domains = clip(strings.Join(*one.Domains, " "), 60)
		}
		t.add(plain(one.ID), plain(one.Team), plain(one.Agent), plain(one.Expires.UTC().Format(time.RFC3339)), plain(one.Alg),
			bound(int64(one.Rate)), bound(one.Memory), bound(one.Storage), plain(domains), plain(strconv.FormatUint(uint64(one.By), 10)), state)
	}
	return t
}

func newTokenRevokeCommand(a *app) *cobra.Command {
	var agent string
	c := &cobra.Command{
		Use:   "revoke ID | revoke --agent AGENT",
		Short: "End a token, or all of an agent's",
		Example: `  sudo bulkhead token revoke M3GZJ3BQX2S5V7N4YLQGZ6WZ4E
  sudo bulkhead token revoke --agent writer`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if (agent == "") == (len(args) == 0) {
				return badInput("name one token, or say --agent AGENT", "`sudo bulkhead token list` shows them")
			}
			var q protocol.Revoke
			if len(args) == 1 {
				q.ID = args[0]
			} else {
				team, err := a.theTeam(c.Context())
				if err != nil {
					return err
				}
				q.Team, q.Agent = team, agent
			}
			var r protocol.Revoked
			if err := a.client().Tokens(c.Context(), protocol.VerbRevoke, q, &r); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			fmt.Fprintf(a.out, "%d revoked as of epoch %d\n", len(r.IDs), r.Epoch)
			a.waiting(r.Waiting, "refuse every token within thirty seconds, until they are told")
			return nil
		},
	}
	c.Flags().StringVar(&agent, "agent", "", "all tokens of this agent")
	return c
}

func newTokenRotateCommand(a *app) *cobra.Command {
	var q protocol.Rotate
	c := &cobra.Command{
		Use:   "rotate-keys",
		Short: "Sign with new keys; tokens of the former ones end with the overlap",
		Example: `  sudo bulkhead token rotate-keys
  sudo bulkhead token rotate-keys --overlap 0    # a key is known to others: every token ends now`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var r protocol.Rotated
			if err := a.client().Tokens(c.Context(), protocol.VerbRotate, q, &r); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(r)
			}
			fmt.Fprintf(a.out, "new keys: %d; tokens of the former ones (%d) end at %s at the latest\n", len(r.Keys), len(r.Former), r.Until.UTC().Format(time.RFC3339))
			a.waiting(r.Waiting, "refuse every token within thirty seconds, until they are told")
			return nil
		},
	}
	c.Flags().DurationVar(&q.Overlap, "overlap", defaultOverlap, "how long tokens of the former keys are still taken; 0: not at all")
	return c
}
