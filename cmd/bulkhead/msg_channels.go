package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/terminal"
)

type (
	channelsDoc struct {
		SchemaVersion int                      `json:"schemaVersion"`
		Team          string                   `json:"team"`
		Channels      []adapter.ChannelMembers `json:"channels"`
	}
	requestsDoc struct {
		SchemaVersion int                         `json:"schemaVersion"`
		Team          string                      `json:"team"`
		Requests      []adapter.MembershipRequest `json:"requests"`
	}
	requestDoc struct {
		SchemaVersion int    `json:"schemaVersion"`
		Team          string `json:"team"`
		adapter.MembershipRequest
	}
)

func newChannelsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "channels",
		Short: "Show who is in which channel, and what differs from the manifest",
		Long: `Show who is in which channel now, and which of it was approved beside the manifest.
It is in force until the manifest gives that channel other members, which then wins.`,
		Example: `  sudo bulkhead msg channels`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var l protocol.Members
			if err := a.client().Messages(c.Context(), team, protocol.VerbMembers, struct{}{}, &l); err != nil {
				return err
			}
			if a.json {
				if l.Channels == nil {
					l.Channels = []adapter.ChannelMembers{}
				}
				return a.printJSON(channelsDoc{1, team, l.Channels})
			}
			a.showChannels(l.Channels)
			return nil
		},
	}
}

func (a *app) showChannels(channels []adapter.ChannelMembers) {
	if len(channels) == 0 {
		fmt.Fprintln(a.out, "the manifest has no channels")
		return
	}
	t := table{head: []string{"CHANNEL", "LAST", "MEMBERS", "BESIDE THE MANIFEST"}}
	for _, c := range channels {
		var differs []string
		for _, one := range c.Changes {
			s := fmt.Sprintf("%s %ss (request %d)", one.Agent, one.Change, one.Request)
			if one.Change == adapter.Join {
				s += fmt.Sprintf(" from #%d on", one.From)
			}
			differs = append(differs, s)
		}
		members := strings.Join(c.Members, ", ")
		if members == "" {
			members = "-"
		}
		t.add(plain(c.Channel), plain(strconv.FormatUint(c.Last, 10)), plain(members), cell{strings.Join(differs, ", "), yellow})
	}
	t.write(a.out, a.colour)
}

func newRequestsCommand(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "requests",
		Short: "Show which changes of channels the orchestrator asks for",
		Long: `Show which changes of channels the orchestrator asks for and nobody has decided yet.
The reason is an agent's word: it is no instruction. A request is over after seven days.`,
		Example: `  sudo bulkhead msg requests
  sudo bulkhead msg requests --all --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var l protocol.Requests
			if err := a.client().Messages(c.Context(), team, protocol.VerbRequests, protocol.RequestsQuery{All: all}, &l); err != nil {
				return err
			}
			if a.json {
				if l.Requests == nil {
					l.Requests = []adapter.MembershipRequest{}
				}
				return a.printJSON(requestsDoc{1, team, l.Requests})
			}
			a.showRequests(l.Requests)
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "those that are over as well")
	return c
}

func (a *app) showRequests(requests []adapter.MembershipRequest) {
	if len(requests) == 0 {
		fmt.Fprintln(a.out, "no requests")
		return
	}
	t := table{head: []string{"ID", "AT", "BY", "CHANGE", "STATE", "REASON"}}
	open := false
	for _, r := range requests {
		state, paint := string(r.State), ""
		switch r.State {
		case adapter.RequestOpen:
			state, paint, open = "until "+r.Expires.UTC().Format(time.RFC3339), yellow, true
		default:
			if r.Why != "" {
				state += ": " + clip(r.Why, 60)
			}
		}
		t.add(plain(strconv.FormatInt(r.ID, 10)), plain(r.At.UTC().Format(time.RFC3339)), plain(r.By), plain(fmt.Sprintf("%s %ss %s", r.Agent, r.Change, r.Channel)),
			cell{state, paint}, plain(clip(r.Reason, 120)))
	}
	t.write(a.out, a.colour)
	if open {
		a.next("`sudo bulkhead msg approve ID` puts one in force, `sudo bulkhead msg refuse ID --reason TEXT` does not")
	}
}

func newApproveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "approve ID",
		Short: "Approve a change of a channel that the orchestrator asks for",
		Long: `Approve a change of a channel that the orchestrator asks for. It is in force at once
and until the manifest gives that channel other members. Who joins gets, and may read,
what is sent from then on; who leaves keeps what waits for it and gets no more.`,
		Example: `  sudo bulkhead msg approve 3`,
		Args:    cobra.ExactArgs(1),
		RunE:    func(c *cobra.Command, args []string) error { return a.decide(c.Context(), args[0], true, "") },
	}
}

func newRefuseCommand(a *app) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:     "refuse ID",
		Short:   "Refuse a change of a channel that the orchestrator asks for",
		Example: `  sudo bulkhead msg refuse 3 --reason 'ops has enough to read'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return badInput("--reason is needed: the orchestrator is told it", "bulkhead msg refuse "+clip(args[0], 20)+" --reason TEXT")
			}
			return a.decide(c.Context(), args[0], false, reason)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the orchestrator")
	return c
}

func (a *app) decide(ctx context.Context, arg string, approve bool, reason string) error {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil || id <= 0 {
		return badInput(fmt.Sprintf("%.40q is no request's id", arg), "`sudo bulkhead msg requests` shows them")
	}
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	var r adapter.MembershipRequest
	if err := a.client().Messages(ctx, team, protocol.VerbDecide, protocol.Decision{ID: id, Approve: approve, Reason: reason}, &r); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(requestDoc{1, team, r})
	}
	word := string(r.State)
	if r.Duplicate {
		word += " before"
	}
	fmt.Fprintf(a.out, "request %d, %s: %s %ss %s\n", r.ID, word, terminal.Line(r.Agent), terminal.Line(string(r.Change)), terminal.Line(r.Channel))
	return nil
}
