package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/deny"
	"bulkhead/internal/layout"
	"bulkhead/internal/record"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newDenialsCommand(a *app) *cobra.Command {
	var since time.Duration
	c := &cobra.Command{
		Use:   "denials [AGENT...]",
		Short: "Show what was refused, why, and what would allow it",
		Long: `Show what agents were refused: each destination, message and tool once, with a count.
The gateway's and the adapter's records say what was asked; the warden's pin server and
the counters of nftables are witnesses that no agent can reach. The warden's counters
begin with its own start.`,
		Example: `  sudo bulkhead denials
  sudo bulkhead denials writer --since 1h --json`,
		RunE: func(c *cobra.Command, args []string) error {
			res, err := a.collectDenials(c.Context(), args, since)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			a.showDenials(res)
			return nil
		},
	}
	c.Flags().DurationVar(&since, "since", 0, "only what was refused within this time, like 1h; 0: everything that the logs hold")
	return c
}

// collectDenials joins the gateway's records with what the warden says.
func (a *app) collectDenials(ctx context.Context, agents []string, since time.Duration) (wire.DenialsResult, error) {
	var res wire.DenialsResult
	if since < 0 {
		return res, badInput("--since is negative", "name a time like 1h")
	}
	team, err := a.theTeam(ctx)
	if err != nil {
		return res, err
	}
	if err := a.client().Call(ctx, wire.VerbDenials, wire.AgentRequest{Team: team, Agents: agents}, &res, a.progress); err != nil {
		return res, err
	}
	var from time.Time
	if since > 0 {
		from = time.Now().Add(-since)
	}
	ofAdapter := map[string]*denialBook{}
	if res.Adapter {
		files, err := a.client().Logs(ctx, wire.LogsRequest{Team: team, Agent: layout.AdapterName})
		if err != nil {
			return res, err
		}
		ofAdapter, err = readDenials(files, from, "adapter")
		closeAll(files)
		if err != nil {
			return res, err
		}
	}
	for i := range res.Agents {
		one := &res.Agents[i]
		files, err := a.client().Logs(ctx, wire.LogsRequest{Team: team, Agent: one.Agent, Container: "gateway"})
		if err != nil {
			return res, err
		}
		books, err := readDenials(files, from, "gateway")
		closeAll(files)
		if err != nil {
			return res, err
		}
		book := &denialBook{}
		for _, b := range books { // all are this agent's, whatever name its gateway writes
			book.addAll(b)
		}
		book.addAll(ofAdapter[one.Agent])
		for _, d := range one.Denials {
			if d.Last.After(from) {
				book.add(d)
			}
		}
		one.Denials = book.list()
	}
	return res, nil
}

// denialBook folds denials of one agent by target and code.
type denialBook struct{ of map[string]*wire.Denial }

func (b *denialBook) add(d wire.Denial) {
	if b.of == nil {
		b.of = map[string]*wire.Denial{}
	}
	k := d.Target + "\x00" + string(d.Reason.Code)
	had := b.of[k]
	if had == nil {
		b.of[k] = &d
		return
	}
	if slices.Equal(had.By, d.By) {
		had.Count += d.Count
	} else { // the same refusals, seen by another
		had.Count = max(had.Count, d.Count)
		had.By = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(had.By), d.By...))))
	}
	if d.First.Before(had.First) {
		had.First = d.First
	}
	if d.Last.After(had.Last) {
		had.Last = d.Last
	}
}

func (b *denialBook) addAll(other *denialBook) {
	if other != nil {
		for _, d := range other.of {
			b.add(*d)
		}
	}
}

func (b *denialBook) list() []wire.Denial {
	out := []wire.Denial{}
	for _, d := range b.of {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(x, y wire.Denial) int {
		return cmp.Or(y.Last.Compare(x.Last), cmp.Compare(x.Target, y.Target), cmp.Compare(x.Reason.Code, y.Reason.Code))
	})
	return out
}

// readDenials reads the log files of a gateway or an adapter, by the agents that
// they name. What is no record of a denial is passed over: the log is the gateway's own, and whoever takes a gateway over
// can write there what he likes.
func readDenials(files []*os.File, from time.Time, by string) (map[string]*denialBook, error) {
	of := map[string]*denialBook{}
	s := logSplitter{show: func(l logLine) error {
		if by == "adapter" && l.Stream == "" {
			l.Stream = "stdout" // its log has no streams
		}
		if r, ok := recordOf(l); ok && refused(r) && !r.Time.Before(from) {
			b := of[r.Agent]
			if b == nil {
				b = &denialBook{}
				of[r.Agent] = b
			}
			b.add(wire.Denial{Target: r.Target, Reason: *r.Reason, Count: max(r.Count, 1), First: r.Time, Last: r.Time, By: []string{by}})
		}
		return nil
	}}
	for _, f := range files {
		if _, err := copyFrom(&s, f, 0); err != nil {
			return of, err
		}
	}
	return of, s.end()
}

// refused says whether a record is of something that was asked for and not
// given. A tool's "no such key" or "that is no number" is an answer, no refusal.
// That a message was lost, since neither the adapter nor the outbox took it, was
// refused to the agent, and so was one that the adapter has not any more.
func refused(r record.Record) bool {
	if r.Kind == record.Message && r.Verdict == record.Failed && (r.Target == record.Outbox || r.Target == record.Gap) && r.Reason != nil {
		return true
	}
	if r.Reason == nil {
		return false
	}
	if r.Verdict == record.Failed && r.Kind == record.Tool {
		return r.Reason.Layer == deny.LayerTools // of what failed outside, the egress record tells
	}
	if r.Verdict != record.Denied {
		return false
	}
	switch r.Kind {
	case record.Egress, record.Message:
		return true
	case record.Tool:
		return !slices.Contains([]deny.Code{deny.ToolInvalid, deny.ToolMissing, deny.ToolConflict}, r.Reason.Code)
	}
	return false
}

// recordOf reads a record from one line of a gateway's log.
func recordOf(l logLine) (record.Record, bool) {
	var r record.Record
	if l.Stream != "stdout" || !strings.HasPrefix(l.Text, "{") || json.Unmarshal([]byte(l.Text), &r) != nil {
		return r, false
	}
	return r, r.SchemaVersion == record.SchemaVersion && r.Kind != "" && r.Verdict != ""
}

func (a *app) showDenials(res wire.DenialsResult) {
	some := false
	for i, one := range res.Agents {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		w := one.Witness
		fmt.Fprintf(a.out, "%s: %d things refused\n", terminal.Line(one.Agent), len(one.Denials))
		fmt.Fprintf(a.out, "  witnesses: the warden granted %d pins and denied %d since %s; nftables refused %d packets of its dialer\n",
			w.PinsGranted, w.PinsDenied, w.Since.Format(time.RFC3339), w.RefusedPackets)
		if w.Problem != "" {
			fmt.Fprintln(a.out, "  "+terminal.Line(w.Problem))
		}
		if len(one.Denials) == 0 {
			continue
		}
		some = true
		fmt.Fprintln(a.out)
		t := table{head: []string{"LAST", "COUNT", "TARGET", "CODE", "SEEN BY", "TO ALLOW IT"}}
		for _, d := range one.Denials {
			t.add(plain(d.Last.UTC().Format(time.RFC3339)), plain(strconv.FormatUint(d.Count, 10)), plain(clip(d.Target, 60)),
				cell{string(d.Reason.Code), yellow}, plain(strings.Join(d.By, ", ")), plain(clip(d.Reason.Mend, 120)))
		}
		t.write(a.out, a.colour)
	}
	if some {
		a.next("`sudo bulkhead egress suggest AGENT` prints the lines that would allow them", "`sudo bulkhead why AGENT host:port` explains one")
	}
}

// suggestable are the codes that a line in the egress list mends.
func suggestable(c deny.Code) bool { return c == deny.NotListed || c == deny.PortNotListed }
