package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// Documents of `msg` and `dlq` (docs/contracts/json.md).
type (
	messageDoc struct {
		SchemaVersion int    `json:"schemaVersion"`
		Team          string `json:"team"`
		adapter.Message
	}
	sentDoc struct {
		SchemaVersion  int    `json:"schemaVersion"`
		Team           string `json:"team"`
		IdempotencyKey string `json:"idempotency_key"`
		adapter.SendResult
	}
	queuesDoc struct {
		SchemaVersion int                  `json:"schemaVersion"`
		Team          string               `json:"team"`
		Queues        []adapter.QueueState `json:"queues"`
	}
	threadDoc struct {
		SchemaVersion int               `json:"schemaVersion"`
		Team          string            `json:"team"`
		Channel       string            `json:"channel"`
		Messages      []adapter.Message `json:"messages"`
	}
)

func newMessagesCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "msg",
		Short: "See and send messages between agents",
		Long: `See the messages between agents, send some as the operator, decide on changes of
channels that the orchestrator asks for, and back up or repair the store that holds
them.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newTailCommand(a), newSendCommand(a), newQueuesCommand(a), newThreadsCommand(a), newChannelsCommand(a), newRequestsCommand(a),
		newApproveCommand(a), newRefuseCommand(a), newBackupCommand(a), newRepairCommand(a))
	return c
}

// Pages of what an adapter answers.
const (
	tailPage   = 100
	tailWait   = 20 * time.Second
	threadPage = 1000
)

func newTailCommand(a *app) *cobra.Command {
	var all, follow bool
	c := &cobra.Command{
		Use:   "tail",
		Short: "Show messages of the whole team as they are sent",
		Long: `Show messages of the whole team as they are sent, until interrupted. With --all
begin with the oldest that is kept, and end with the newest unless -f is given.
With --json each line is one message.`,
		Example: `  sudo bulkhead msg tail
  sudo bulkhead msg tail --all --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			return a.tail(c.Context(), team, all, follow || !all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "begin with the oldest message that is kept")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new ones after --all")
	return c
}

func (a *app) tail(ctx context.Context, team string, all, follow bool) error {
	q := protocol.TailRequest{Position: -1, Limit: tailPage}
	if all {
		q.Position = 0
	}
	for {
		if follow {
			q.Wait = tailWait
		}
		var t adapter.Tail
		err := a.client().Messages(ctx, team, protocol.VerbTail, q, &t)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the operator has seen enough
		}
		if err != nil {
			return err
		}
		for _, m := range t.Messages {
			if err := a.showMessage(team, m); err != nil {
				return err
			}
		}
		q.Position = t.Position
		if !follow && len(t.Messages) == 0 {
			return nil
		}
	}
}

func (a *app) showMessage(team string, m adapter.Message) error {
	if a.json {
		return a.encode(messageDoc{1, team, m}, "")
	}
	_, err := io.WriteString(a.out, messageText(m)+"\n")
	return err
}

// messageText is one message for a person, on one line.
func messageText(m adapter.Message) string {
	s := fmt.Sprintf("%s  %s#%d  %s", m.Time.UTC().Format(time.RFC3339), terminal.Line(m.Channel), m.Sequence, terminal.Line(m.From))
	if m.To != "" {
		s += " -> " + terminal.Line(m.To)
	}
	s += "  " + terminal.Line(string(m.Type))
	if m.Priority != adapter.Normal {
		s += " (" + terminal.Line(string(m.Priority)) + ")"
	}
	if m.ReplyTo != 0 {
		s += " re #" + strconv.FormatUint(m.ReplyTo, 10)
	}
	return s + "  " + clip(terminal.Line(string(m.Body)), 300)
}

func newSendCommand(a *app) *cobra.Command {
	var d adapter.Draft
	var kind, priority string
	c := &cobra.Command{
		Use:   "send BODY",
		Short: "Send a message as the operator",
		Long: `Send a message as the operator, to an agent or a channel. The body is JSON; text
that is no JSON is sent as a JSON string, and - reads it from standard input. When
the command ends well the message is on disk. The same --key sends it once.`,
		Example: `  sudo bulkhead msg send --to pm 'stop after this task'
  sudo bulkhead msg send --channel all-agents --type policy_update '{"freeze": true}'`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if (d.To == "") == (d.Channel == "") {
				return badInput("one of --to and --channel is needed", "bulkhead msg send --to AGENT BODY")
			}
			if err := oneOf("priority", priority, string(adapter.Low), string(adapter.Normal), string(adapter.High)); err != nil {
				return err
			}
			body, err := a.body(args[0])
			if err != nil {
				return err
			}
			d.Type, d.Priority, d.Body = adapter.Type(kind), adapter.Priority(priority), body
			if d.IdempotencyKey == "" {
				d.IdempotencyKey = newKey()
			}
			return a.send(c.Context(), d)
		},
	}
	f := c.Flags()
	f.StringVar(&d.To, "to", "", "the agent")
	f.StringVar(&d.Channel, "channel", "", "the channel")
	f.StringVar(&kind, "type", "note", "what the message is for, like task_assignment")
	f.StringVar(&priority, "priority", "", "low, normal or high")
	f.Uint64Var(&d.ReplyTo, "reply-to", 0, "the sequence in the channel that it answers")
	f.StringVar(&d.IdempotencyKey, "key", "", "a UUID; default: a new one")
	completeAgents(a, c, "to")
	return c
}

// body reads what is to be sent as JSON.
func (a *app) body(arg string) (json.RawMessage, error) {
	raw := []byte(arg)
	if arg == "-" {
		var err error
		if raw, err = io.ReadAll(io.LimitReader(a.in, adapter.MaxBody+1)); err != nil {
			return nil, badInput("standard input: "+err.Error(), "pass the body as an argument")
		}
	}
	if !json.Valid(raw) {
		text, err := json.Marshal(strings.TrimRight(string(raw), "\n"))
		if err != nil {
			return nil, err
		}
		raw = text
	}
	if len(raw) > adapter.MaxBody {
		return nil, badInput(fmt.Sprintf("the body is larger than %d bytes", adapter.MaxBody), "send where the content lies instead")
	}
	return raw, nil
}

func (a *app) send(ctx context.Context, d adapter.Draft) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	var sent protocol.Sent
	if err := a.client().Messages(ctx, team, protocol.VerbOperatorSend, d, &sent); err != nil {
		return err
	}
	if len(sent.Results) != 1 {
		return badAnswer()
	}
	r := sent.Results[0]
	if r.Reason != nil {
		return refusedMessage(r.Reason)
	}
	if err := r.Refused.Err(); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(sentDoc{1, team, d.IdempotencyKey, r.SendResult})
	}
	word := "sent"
	if r.Duplicate {
		word = "was sent before"
	}
	fmt.Fprintf(a.out, "%s as %s#%d, on disk\n", word, terminal.Line(r.Channel), r.Sequence)
	return nil
}

func newQueuesCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "queues",
		Short:   "Show how much waits for each agent",
		Example: `  sudo bulkhead msg queues`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var l protocol.Queues
			if err := a.client().Messages(c.Context(), team, protocol.VerbQueues, struct{}{}, &l); err != nil {
				return err
			}
			if a.json {
				if l.Queues == nil {
					l.Queues = []adapter.QueueState{}
				}
				return a.printJSON(queuesDoc{1, team, l.Queues})
			}
			a.showQueues(l.Queues)
			return nil
		},
	}
}

func (a *app) showQueues(queues []adapter.QueueState) {
	t := table{head: []string{"AGENT", "QUEUED", "LEASED", "RETRYING", "DEAD", "OLDEST", "BYTES", "FROM"}}
	dead := false
	for _, q := range queues {
		var from []string
		for _, s := range slices.Sorted(maps.Keys(q.Senders)) {
			from = append(from, fmt.Sprintf("%s %d", s, q.Senders[s]))
		}
		oldest := "-"
		if q.Queued > 0 {
			oldest = q.Oldest.Round(time.Second).String()
		}
		paint := ""
		if q.Queued >= adapter.QueueSize {
			paint = red
		}
		deadPaint := ""
		if q.Dead > 0 {
			deadPaint, dead = yellow, true
		}
		t.add(plain(q.Agent), cell{fmt.Sprintf("%d/%d", q.Queued, adapter.QueueSize), paint}, plain(strconv.Itoa(q.Leased)), plain(strconv.Itoa(q.Retry)),
			cell{strconv.Itoa(q.Dead), deadPaint}, plain(oldest), plain(bytesOf(q.Bytes)), plain(strings.Join(from, ", ")))
	}
	t.write(a.out, a.colour)
	if dead {
		a.next("`sudo bulkhead dlq list` shows what could not be delivered, and why")
	}
}

func newThreadsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "threads CHANNEL SEQUENCE",
		Short: "Show a message and all that answers it",
		Long: `Show the thread that a message belongs to, in order. Two agents that write to each
other share the channel @a+b, with their names in order.`,
		Example: `  sudo bulkhead msg threads product 17
  sudo bulkhead msg threads @engineering+pm 3 --json`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil || n == 0 {
				return badInput(fmt.Sprintf("%.40q is no sequence", args[1]), "name the number behind # in `bulkhead msg tail`")
			}
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			return a.thread(c.Context(), team, args[0], n)
		},
	}
}

func (a *app) thread(ctx context.Context, team, channel string, n uint64) error {
	q := protocol.OperatorThread{ThreadRequest: adapter.ThreadRequest{Channel: channel, Sequence: n, Limit: threadPage}}
	doc := threadDoc{SchemaVersion: 1, Team: team, Channel: channel, Messages: []adapter.Message{}}
	for {
		var p adapter.Page
		if err := a.client().Messages(ctx, team, protocol.VerbOperatorThread, q, &p); err != nil {
			return err
		}
		doc.Messages = append(doc.Messages, p.Messages...)
		if p.Next == 0 || len(p.Messages) == 0 {
			break
		}
		q.After = p.Messages[len(p.Messages)-1].Sequence
	}
	if a.json {
		return a.printJSON(doc)
	}
	for _, m := range doc.Messages {
		if _, err := io.WriteString(a.out, messageText(m)+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// completeAgents completes names of agents for a flag, or for the arguments
// when flag is empty.
func completeAgents(a *app, c *cobra.Command, flag string) {
	names := func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		var st wire.StatusResult
		if err := a.client().Call(c.Context(), wire.VerbStatus, wire.TeamRequest{Team: a.team}, &st, nil); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, t := range st.Teams {
			for _, s := range t.Agents {
				if !isAdapter(s.Agent) {
					out = append(out, s.Agent)
				}
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	if flag == "" {
		c.ValidArgsFunction = names
		return
	}
	if err := c.RegisterFlagCompletionFunc(flag, names); err != nil {
		panic("bulkhead: completion of --" + flag + ": " + err.Error()) // the flag is defined above
	}
}
