package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/terminal"
)

type (
	deadLettersDoc struct {
		SchemaVersion int                  `json:"schemaVersion"`
		Team          string               `json:"team"`
		DeadLetters   []adapter.DeadLetter `json:"dead_letters"`
	}
	deadLetterDoc struct {
		SchemaVersion int    `json:"schemaVersion"`
		Team          string `json:"team"`
		adapter.DeadLetter
	}
	countedDoc struct {
		SchemaVersion int    `json:"schemaVersion"`
		Team          string `json:"team"`
		Count         int    `json:"count"`
	}
)

// deadPage is how many dead letters are asked for at once.
const deadPage = 200

func newDeadLettersCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "dlq",
		Short: "See, replay and drop what could not be delivered",
		Long: `See, replay and drop dead letters: messages that could not be delivered, because
nobody took them in time or in as many tries, or because their receiver is gone. They
stay on disk, and count against their sender's quota, until they are replayed or
dropped.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		newDeadListCommand(a), newDeadInspectCommand(a),
		newDeadSetCommand(a, protocol.VerbDeadReplay, &cobra.Command{
			Use: "replay ID...", Short: "Queue dead letters anew",
			Long: `Queue dead letters anew for the agents that they are for, with all of their tries.
They are named by their ids (see "dlq list"); --all takes those of one agent.`,
			Example: "  sudo bulkhead dlq replay 17 18\n  sudo bulkhead dlq replay --all engineering",
		}, "queued anew"),
		newDeadSetCommand(a, protocol.VerbDeadDrop, &cobra.Command{
			Use: "drop ID...", Short: "Forget dead letters for good",
			Long: `Forget dead letters for good: they are neither delivered nor shown any more. They
are named by their ids (see "dlq list"); --all takes those of one agent.`,
			Example: "  sudo bulkhead dlq drop 17\n  sudo bulkhead dlq drop --all engineering",
		}, "dropped"),
	)
	return c
}

func newDeadListCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "list [AGENT]",
		Short:   "Show dead letters, oldest first, and why each was given up",
		Example: "  sudo bulkhead dlq list\n  sudo bulkhead dlq list engineering --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			q := protocol.DeadRequest{Limit: deadPage}
			if len(args) == 1 {
				q.Recipient = args[0]
			}
			return a.deadLetters(c.Context(), team, q)
		},
	}
	completeAgents(a, c, "")
	return c
}

func (a *app) deadLetters(ctx context.Context, team string, q protocol.DeadRequest) error {
	doc := deadLettersDoc{SchemaVersion: 1, Team: team, DeadLetters: []adapter.DeadLetter{}}
	for {
		var l protocol.DeadLetters
		if err := a.client().Messages(ctx, team, protocol.VerbDead, q, &l); err != nil {
			return err
		}
		if len(l.DeadLetters) == 0 {
			break
		}
		doc.DeadLetters = append(doc.DeadLetters, l.DeadLetters...)
		q.After = l.DeadLetters[len(l.DeadLetters)-1].ID
	}
	if a.json {
		return a.printJSON(doc)
	}
	if len(doc.DeadLetters) == 0 {
		fmt.Fprintln(a.out, "no dead letters")
		return nil
	}
	t := table{head: []string{"ID", "AT", "FOR", "FROM", "MESSAGE", "TYPE", "WHY"}}
	for _, d := range doc.DeadLetters {
		t.add(plain(strconv.FormatInt(d.ID, 10)), plain(d.At.UTC().Format(time.RFC3339)), plain(d.Recipient), plain(d.From),
			plain(fmt.Sprintf("%s#%d", d.Channel, d.Sequence)), plain(string(d.Type)), cell{clip(d.Reason, 120), yellow})
	}
	t.write(a.out, a.colour)
	a.next("`sudo bulkhead dlq inspect ID` shows one whole", "`sudo bulkhead dlq replay ID` queues it anew, `drop` forgets it")
	return nil
}

func newDeadInspectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "inspect ID",
		Short:   "Show one dead letter whole",
		Example: "  sudo bulkhead dlq inspect 17",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := deadIDs(args)
			if err != nil {
				return err
			}
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var l protocol.DeadLetters
			if err := a.client().Messages(c.Context(), team, protocol.VerbDead, protocol.DeadRequest{After: ids[0] - 1, Limit: 1}, &l); err != nil {
				return err
			}
			if len(l.DeadLetters) == 0 || l.DeadLetters[0].ID != ids[0] {
				return badInput("there is no dead letter "+args[0], "`sudo bulkhead dlq list` shows those that there are")
			}
			d := l.DeadLetters[0]
			if a.json {
				return a.printJSON(deadLetterDoc{1, team, d})
			}
			fmt.Fprintf(a.out, "dead letter %d for %s, given up %s after %d attempts\n", d.ID, terminal.Line(d.Recipient), d.At.UTC().Format(time.RFC3339), d.Attempts)
			fmt.Fprintf(a.out, "why: %s\n", terminal.Line(d.Reason))
			m := d.Message
			body := m.Body
			m.Body = nil
			fmt.Fprintf(a.out, "%s key %s\n%s\n", messageText(m), terminal.Line(m.IdempotencyKey), terminal.Text(string(body)))
			return nil
		},
	}
}

// newDeadSetCommand does one thing to dead letters: some by their ids, or all
// of an agent.
func newDeadSetCommand(a *app, verb string, c *cobra.Command, done string) *cobra.Command {
	var all string
	c.RunE = func(c *cobra.Command, args []string) error {
		if (all == "") == (len(args) == 0) {
			return badInput("name dead letters by their ids, or all of one agent with --all AGENT", "`sudo bulkhead dlq list` shows them")
		}
		set := protocol.DeadSet{Recipient: all}
		var err error
		if set.IDs, err = deadIDs(args); err != nil {
			return err
		}
		team, err := a.theTeam(c.Context())
		if err != nil {
			return err
		}
		var n protocol.Counted
		if err := a.client().Messages(c.Context(), team, verb, set, &n); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(countedDoc{1, team, n.Count})
		}
		fmt.Fprintf(a.out, "%s: %d\n", done, n.Count)
		if n.Count < len(args) {
			fmt.Fprintf(a.out, "%d of those named do not exist (any more)\n", len(args)-n.Count)
		}
		return nil
	}
	c.Flags().StringVar(&all, "all", "", "all of this agent")
	completeAgents(a, c, "all")
	return c
}

func deadIDs(args []string) ([]int64, error) {
	var out []int64
	for _, s := range args {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n <= 0 {
			return nil, badInput(fmt.Sprintf("%.40q is no dead letter's id", s), "`sudo bulkhead dlq list` shows them")
		}
		out = append(out, n)
	}
	return out, nil
}
