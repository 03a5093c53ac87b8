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

	"bulkhead/internal/client"
	"bulkhead/internal/record"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// watchAgain is how long a watch waits for a warden that is being restarted.
const watchAgain = 500 * time.Millisecond

func newWatchCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "watch [AGENT]",
		Short: "Show what happens, as it happens",
		Long: `Show decisions on egress and messages, denials, starts, ends, restarts and repairs as they
happen, until interrupted. Repeats of a decision come folded, once a minute. With
--json each line is one record (docs/contracts/record.md).`,
		Example: `  sudo bulkhead watch
  sudo bulkhead watch writer --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			req := wire.WatchRequest{Team: team}
			if len(args) == 1 {
				req.Agent = args[0]
			}
			return a.watch(c.Context(), req)
		},
	}
}

// watching is one running watch: the warden's events and the gateways' logs.
type watching struct {
	a    *app
	ctx  context.Context
	team string
	work sync.WaitGroup

	mu       sync.Mutex // guards what follows, and the output
	followed map[string]bool
	failed   error // of the output
	stop     context.CancelFunc
}

func (a *app) watch(ctx context.Context, req wire.WatchRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watching{a: a, ctx: ctx, team: req.Team, followed: map[string]bool{}, stop: cancel}
	defer w.work.Wait()
	defer cancel()
	seen := false
	for {
		err := a.client().Watch(ctx, req, func() {
			if !seen {
				w.followAll(req.Agent)
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

// followAll follows the gateway logs of all agents and the adapter's, or of one
// agent.
func (w *watching) followAll(agent string) {
	if agent != "" {
		w.follow(agent)
		return
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

// follow shows what an agent's gateway records from now on.
func (w *watching) follow(agent string) {
	w.mu.Lock()
	had := w.followed[agent]
	w.followed[agent] = true
	w.mu.Unlock()
	if had {
		return
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
					w.show(r, r.Agent)
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
