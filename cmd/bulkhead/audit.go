package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/audit/protocol"
	"bulkhead/internal/record"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newAuditCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show and verify the log of what tools did",
		Long: `With "audit: true" in the manifest, what agents' tools did goes to a log of an account
of its own, which no agent can change. Root takes note of it every ten seconds; verify
reads the whole log and compares.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newAuditTailCommand(a), newAuditVerifyCommand(a))
	return c
}

const (
	maxAuditLines = 1000
	auditAgain    = time.Second // between looks for new lines
)

func newAuditTailCommand(a *app) *cobra.Command {
	var n int
	var follow bool
	c := &cobra.Command{
		Use:   "tail [AGENT]",
		Short: "Show the last lines",
		Long: `Show the last lines, and with --follow go on with new ones, until interrupted.

Without "audit: true" there is no such log. Each gateway keeps the records of its last
tool calls all the same, the oldest giving way: "bulkhead watch AGENT --since 1h".`,
		Example: "  sudo bulkhead audit tail\n  sudo bulkhead audit tail writer -n 500 --json\n  sudo bulkhead audit tail --follow",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if n < 1 || n > maxAuditLines {
				return badInput("-n is not between 1 and 1000", "say how many lines")
			}
			q := protocol.Tail{Team: a.team, After: -int64(n), Limit: n}
			if len(args) == 1 {
				q.Agent = args[0]
			}
			for {
				var r protocol.Lines
				err := a.client().Audit(c.Context(), protocol.VerbTail, q, &r)
				if c.Context().Err() != nil {
					return nil //nolint:nilerr // the operator has seen enough
				}
				if err != nil {
					return err
				}
				for _, l := range r.Lines {
					if err := a.showAudit(l); err != nil {
						return err
					}
				}
				if !follow {
					return nil
				}
				q.After, q.Limit = r.Position, maxAuditLines
				if r.Position < 0 { // the log was empty, and may have more than one line the next time
					q.After = -maxAuditLines
				}
				if len(r.Lines) > 0 {
					continue // there may be more
				}
				select {
				case <-c.Context().Done():
					return nil
				case <-time.After(auditAgain):
				}
			}
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new lines")
	c.Flags().IntVarP(&n, "lines", "n", 100, "how many of the last lines are looked at")
	completeAgents(a, c, "")
	return c
}

func (a *app) showAudit(l protocol.Line) error {
	if a.json {
		return a.encode(l, "")
	}
	_, err := io.WriteString(a.out, auditLine(l)+"\n")
	return err
}

// auditLine is one line for a person.
func auditLine(l protocol.Line) string {
	var r record.Record
	if err := json.Unmarshal(l.Record, &r); err != nil {
		return terminal.Line(strconv.FormatInt(l.Index, 10) + " unreadable")
	}
	parts := []string{strconv.FormatInt(l.Index, 10), r.Time.UTC().Format(time.RFC3339), l.Team + "/" + l.Agent, string(r.Verdict), string(r.Kind), r.Target}
	if r.Reason != nil {
		parts = append(parts, string(r.Reason.Code))
	}
	if len(r.Input) > 0 {
		parts = append(parts, clip(string(r.Input), 200))
	}
	return terminal.Line(strings.Join(parts, " "))
}

func newAuditVerifyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Read the whole log and say whether it is as it was written",
		Long: `Read the whole log: every line's place, the signature of every checkpoint, and every
head that root took note of. Exits with 1 when anything differs.`,
		Example: "  sudo bulkhead audit verify\n  sudo bulkhead audit verify --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var r protocol.Verified
			if err := a.client().Audit(c.Context(), protocol.VerbVerify, protocol.Verify{}, &r); err != nil {
				return err
			}
			if a.json {
				if err := a.printJSON(r); err != nil {
					return err
				}
			} else {
				fmt.Fprintf(a.out, "%d lines, root %s\n", r.Lines, terminal.Line(r.Root))
				fmt.Fprintf(a.out, "signed up to line %d with %s; %d notes of root's compared\n", r.Covers, terminal.Line(r.Key), r.Witnesses)
			}
			if r.Problem == "" {
				return nil
			}
			if !a.json {
				fmt.Fprintln(a.err, "the log is NOT as it was written: "+terminal.Line(r.Problem))
			}
			return exitCode(wire.ExitFailed)
		},
	}
}
