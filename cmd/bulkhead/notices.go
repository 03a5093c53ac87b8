package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/record"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// noticesDoc is the JSON form of notices.
type noticesDoc struct {
	SchemaVersion int      `json:"schemaVersion"`
	Team          string   `json:"team"`
	Notices       []notice `json:"notices"`
}

type notice struct {
	Agent string    `json:"agent"`
	Time  time.Time `json:"time"`
	Text  string    `json:"text"`
}

func newNoticesCommand(a *app) *cobra.Command {
	var since time.Duration
	c := &cobra.Command{
		Use:   "notices [AGENT...]",
		Short: "Show what agents told you",
		Long: `Show what agents sent to their operator with the tool notify_send, the oldest first, as
far as the logs of their gateways go back. Each is in the warden's log as well, which is
the journal under systemd, thirty of an agent in a minute at most. An agent wrote them:
they are no instructions.`,
		Example: `  sudo bulkhead notices
  sudo bulkhead notices writer --since 24h --json`,
		RunE: func(c *cobra.Command, args []string) error {
			if since < 0 {
				return badInput("--since is negative", "name a time like 24h")
			}
			var from time.Time
			if since > 0 {
				from = time.Now().Add(-since)
			}
			res, err := a.collectNotices(c.Context(), args, from)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			a.showNotices(res)
			return nil
		},
	}
	c.Flags().DurationVar(&since, "since", 0, "only those of this time, like 24h; 0: everything that the logs hold")
	completeAgents(a, c, "")
	return c
}

// collectNotices reads the logs of agents' gateways.
func (a *app) collectNotices(ctx context.Context, agents []string, from time.Time) (noticesDoc, error) {
	res := noticesDoc{SchemaVersion: 1, Notices: []notice{}}
	team, err := a.theTeam(ctx)
	if err != nil {
		return res, err
	}
	res.Team = team
	if len(agents) == 0 {
		var st wire.StatusResult
		if err := a.client().Call(ctx, wire.VerbStatus, wire.TeamRequest{Team: team}, &st, nil); err != nil {
			return res, err
		}
		for _, t := range st.Teams {
			for _, s := range t.Agents {
				if !isAdapter(s.Agent) {
					agents = append(agents, s.Agent)
				}
			}
		}
	}
	for _, agent := range agents {
		files, err := a.client().Logs(ctx, wire.LogsRequest{Team: team, Agent: agent, Container: "gateway"})
		if err != nil {
			return res, err
		}
		s := logSplitter{show: func(l logLine) error {
			if r, ok := recordOf(l); ok && r.Kind == record.Life && r.Target == record.Notice && !r.Time.Before(from) {
				res.Notices = append(res.Notices, notice{agent, r.Time, r.Detail})
			}
			return nil
		}}
		for _, f := range files {
			if _, err = copyFrom(&s, f, 0); err != nil {
				break
			}
		}
		closeAll(files)
		if err != nil {
			return res, err
		}
		if err := s.end(); err != nil {
			return res, err
		}
	}
	slices.SortStableFunc(res.Notices, func(x, y notice) int { return cmp.Or(x.Time.Compare(y.Time), cmp.Compare(x.Agent, y.Agent)) })
	return res, nil
}

func (a *app) showNotices(res noticesDoc) {
	if len(res.Notices) == 0 {
		fmt.Fprintln(a.out, "No notices.")
	}
	for _, n := range res.Notices {
		fmt.Fprintf(a.out, "%s  %-12s  %s\n", n.Time.UTC().Format(time.RFC3339), terminal.Line(n.Agent), terminal.Line(n.Text))
	}
}

// toldLines are what status says of what an agent's gateway told the warden.
type toldLines struct{ wrong, notices, asks []string }

// noticeDays is for how long status goes on naming a notice, or lost messages.
const noticeDays = 24 * time.Hour

func toldOf(s wire.AgentStatus, now time.Time) (t toldLines) {
	if n := s.Notices; n != nil && now.Sub(n.Last) < noticeDays {
		t.notices = append(t.notices, fmt.Sprintf("%s: %d, the last at %s: `bulkhead notices %s`", s.Agent, n.Count, n.Last.UTC().Format(time.RFC3339), s.Agent))
	}
	if g := s.Gaps; g != nil && now.Sub(g.Last) < noticeDays {
		t.wrong = append(t.wrong, fmt.Sprintf("%s: messages to it are MISSING in %d places of channels, the last found at %s, and cannot be had any more: `bulkhead denials %s`",
			s.Agent, g.Count, g.Last.UTC().Format(time.RFC3339), s.Agent))
	}
	if q := s.Asking; q != nil && q.Waiting > 0 {
		t.asks = append(t.asks, fmt.Sprintf("%s: %d, the oldest since %s: `sudo bulkhead approvals %s`", s.Agent, q.Waiting, q.Since.UTC().Format(time.RFC3339), s.Agent))
	}
	o := s.Outbox
	if o == nil {
		return t
	}
	if o.Waiting > 0 {
		t.wrong = append(t.wrong, fmt.Sprintf("%s: %d messages wait in its outbox for the adapter", s.Agent, o.Waiting))
	}
	if l := o.Lost; l != nil && now.Sub(l.Last) < noticeDays {
		t.wrong = append(t.wrong, fmt.Sprintf("%s: %d messages are LOST, the last at %s: neither the adapter nor the outbox took them, and the agent was told: `bulkhead denials %s`",
			s.Agent, l.Count, l.Last.UTC().Format(time.RFC3339), s.Agent))
	}
	return t
}

func raisedText(r wire.Raised) string {
	parts := []string{"open files " + limitText(r.NoFile) + " (1024 by default)", "core files " + limitText(r.CoreBytes) + " bytes (0 by default)"}
	return strings.Join(parts, ", ") + "; by " + r.Witness
}

func limitText(n uint64) string {
	if n == 1<<64-1 {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
