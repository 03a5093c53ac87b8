package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/client"
	"bulkhead/internal/record"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

const (
	watchAgain = 500 * time.Millisecond // that a watch waits for a warden that is being restarted
	callsAgain = 2 * time.Second        // and for a gateway that does not run
)

func newWatchCommand(a *app) *cobra.Command {
	var since time.Duration
	c := &cobra.Command{
		Use:   "watch [AGENT]",
		Short: "Show what happens, as it happens",
		Long: `Show tool calls, messages, decisions on egress, denials, notices, starts, ends, restarts,
repairs and what operators do inside, as they happen, until interrupted. Denials and
decisions on egress come folded, once a minute when they repeat; each tool call comes by
itself when it has ended, with its input as it is on record: sizes and hashes in place of
contents. A message comes without its body, once it is on disk. Who cannot keep up is told
how much was left out.

Each gateway keeps the records of its last tool calls, some MiB, the oldest giving way;
--since shows those first. With "audit: true" it keeps only what audit has not taken
yet: "bulkhead audit tail" has the others. With --json each line is one record
(docs/contracts/record.md).`,
		Example: `  sudo bulkhead watch
  sudo bulkhead watch writer --since 1h
  sudo bulkhead watch writer --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			if since < 0 {
				return badInput("--since is negative", "name a time like 1h")
			}
			req := wire.WatchRequest{Team: team}
			if len(args) == 1 {
				req.Agent = args[0]
			}
			return a.watch(c.Context(), req, since)
		},
	}
	c.Flags().DurationVar(&since, "since", 0, "begin with the tool calls of this time, like 1h, that gateways still keep")
	return c
}

// watching is one running watch: the warden's events, the gateways' logs and
// their calls, and the adapter's messages.
type watching struct {
	a     *app
	ctx   context.Context
	team  string
	only  string    // agent; empty: all
	began time.Time // calls from before it are history
	since time.Time // of calls; zero: from now on
	work  sync.WaitGroup

	mu       sync.Mutex // guards what follows, and the output
	followed map[string]bool
	failed   error // of the output
	stop     context.CancelFunc
}

func (a *app) watch(ctx context.Context, req wire.WatchRequest, since time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watching{a: a, ctx: ctx, team: req.Team, only: req.Agent, began: time.Now(), followed: map[string]bool{}, stop: cancel}
	if since > 0 {
		w.since = w.began.Add(-since)
	}
	defer w.work.Wait()
	defer cancel()
	seen := false
	for {
		err := a.client().Watch(ctx, req, func() {
			if !seen {
				w.followAll()
			}
			seen = true
		}, w.event)
		var known *client.Error
		switch {
		case w.outcome() != nil:
			return w.outcome()
		case ctx.Err() != nil:
			return nil // the operator has seen enough
		case !seen, errors.As(err, &known) && known.Exit != wire.ExitNoWarden:
			return err
		}
		fmt.Fprintln(a.err, "  the warden does not answer; agents go on; waiting for it")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchAgain):
		}
	}
}

func (w *watching) outcome() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// followAll follows the gateways of all agents, or of one, and the adapter.
func (w *watching) followAll() {
	if w.only != "" {
		w.follow(w.only) // status does not name guests
	}
	var st wire.StatusResult
	if err := w.a.client().Call(w.ctx, wire.VerbStatus, wire.TeamRequest{Team: w.team}, &st, nil); err != nil {
		return // the watch itself says what is wrong
	}
	for _, t := range st.Teams {
		for _, s := range t.Agents {
			w.follow(s.Agent)
		}
	}
}

// follow shows what an agent's gateway, or the adapter, records from now on.
func (w *watching) follow(agent string) {
	if w.only != "" && agent != w.only && !isAdapter(agent) {
		return
	}
	w.mu.Lock()
	had := w.followed[agent]
	w.followed[agent] = true
	w.mu.Unlock()
	if had {
		return
	}
	if isAdapter(agent) {
		w.work.Go(w.followMessages)
	} else {
		w.work.Go(func() { w.followCalls(agent) })
	}
	w.work.Go(func() {
		tail := 0
		for w.ctx.Err() == nil {
			_ = w.a.follow(w.ctx, wire.LogsRequest{Team: w.team, Agent: agent, Container: "gateway"}, tail, true, func(l logLine) error {
				if isAdapter(agent) {
					l.Stream = "stdout" // no shim stands between it and its log
				}
				r, ok := recordOf(l)
				switch {
				case !ok:
				case isAdapter(agent): // it records for every agent
					if w.only == "" || r.Agent == w.only {
						w.show(r, r.Agent)
					}
				default:
					w.show(r, agent)
				}
				return nil
			})
			select {
			case <-w.ctx.Done():
			case <-time.After(watchAgain):
			}
		}
	})
}

// followCalls shows an agent's tool calls. Those that were refused or failed come
// by the gateway's log, but for those from before the watch began.
func (w *watching) followCalls(agent string) {
	since := w.since
	for w.ctx.Err() == nil {
		on := false
		_ = w.a.client().Calls(w.ctx, wire.CallsRequest{Team: w.team, Agent: agent, Since: since}, func() { on = true }, func(raw json.RawMessage) error {
			var r record.Record
			if err := json.Unmarshal(raw, &r); err != nil {
				return err
			}
			if r.Kind == record.Life || r.Verdict == record.Allowed || r.Time.Before(w.began) {
				w.show(r, agent)
			}
			return nil
		})
		if on { // what comes until it is reached again is not to be missed
			since = time.Now()
		}
		select {
		case <-w.ctx.Done():
		case <-time.After(callsAgain):
		}
	}
}

// followMessages shows who sends to whom. The adapter tells by position, so that
// nothing is left out, however slowly it is read.
func (w *watching) followMessages() {
	q := protocol.TailRequest{Position: -1, Limit: tailPage, Bare: true}
	for w.ctx.Err() == nil {
		var t adapter.Tail
		if err := w.a.client().Messages(w.ctx, w.team, protocol.VerbTail, q, &t); err != nil {
			select {
			case <-w.ctx.Done():
			case <-time.After(callsAgain):
			}
			continue
		}
		for _, m := range t.Messages {
			if w.only == "" || m.From == w.only || m.To == w.only {
				w.show(messageRecord(w.team, m), m.From)
			}
		}
		q.Position, q.Wait = t.Position, tailWait
	}
}

// messageRecord is a message without its body.
func messageRecord(team string, m adapter.Message) record.Record {
	r := record.Record{
		SchemaVersion: record.SchemaVersion, Time: m.Time, Team: team, Agent: m.From, Kind: record.Message, Verdict: record.Allowed,
		Target: "channel " + m.Channel, Detail: fmt.Sprintf("%s, %s#%d, key %s", m.Type, m.Channel, m.Sequence, m.IdempotencyKey),
	}
	if m.To != "" {
		r.Target = "to " + m.To
	}
	return r
}

// event shows one event of the warden. An agent that has just come is followed
// as well.
func (w *watching) event(raw json.RawMessage) error {
	var r record.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		return &client.Error{What: "an event does not decode: " + err.Error(), Mend: "use the bulkhead program of the warden's build", Exit: wire.ExitFailed}
	}
	if r.Agent != "" && r.Kind == record.Life {
		w.follow(r.Agent)
	}
	w.show(r, r.Agent)
	return w.outcome()
}

// show prints one record. agent is whose log it stood in, whatever the record
// says.
func (w *watching) show(r record.Record, agent string) {
	r.Agent = agent
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return
	}
	if w.a.json {
		w.failed = w.a.encode(r, "")
	} else {
		_, w.failed = io.WriteString(w.a.out, w.a.recordText(r)+"\n")
	}
	if w.failed != nil {
		w.stop()
	}
}

// recordText is one record for a person.
func (a *app) recordText(r record.Record) string {
	paint := map[record.Verdict]string{record.Denied: red, record.Failed: yellow}[r.Verdict]
	verdict := fmt.Sprintf("%-7s", terminal.Line(string(r.Verdict)))
	if a.colour && paint != "" {
		verdict = "\x1b[" + paint + "m" + verdict + "\x1b[0m"
	}
	s := fmt.Sprintf("%s  %-12s  %-9s  %s", r.Time.UTC().Format(time.TimeOnly), terminal.Line(orDash(r.Agent)), terminal.Line(string(r.Kind)), verdict)
	if r.Target != "" {
		s += "  " + terminal.Line(r.Target)
	}
	if r.Count > 1 {
		s += " x" + strconv.FormatUint(r.Count, 10)
	}
	if r.Detail != "" {
		s += "  " + terminal.Line(r.Detail)
	}
	if r.Micros > 0 {
		s += "  " + (time.Duration(r.Micros) * time.Microsecond).String()
	}
	if r.Token != "" {
		s += "  token " + terminal.Line(r.Token)
	}
	if len(r.Input) > 0 {
		s += "  " + clip(terminal.Line(string(r.Input)), 200)
	}
	if r.Reason != nil {
		s += "  " + terminal.Line(string(r.Reason.Code)+": "+r.Reason.Why)
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
