package warden

import (
	"context"
	"fmt"
	"slices"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// members asks the adapter who is in which channel now: what was approved
// beside the manifest is the adapter's alone.
func (a *adapterRun) members(ctx context.Context) (all []adapter.ChannelMembers, err error) {
	ctx, cancel := context.WithTimeout(ctx, adapterAsk)
	defer cancel()
	err = a.ask(ctx, func(o *client.Operator) error {
		all, err = o.Members(ctx)
		return err
	})
	return all, err
}

// policyNow is the manifest's policy with the members that channels have now.
// why says how that differs for an agent and a channel, or that it is not known.
func (t *teamRun) policyNow(ctx context.Context, agent, channel string) (p adapter.Policy, why string) {
	p = t.manifest.Policy()
	if t.adapter == nil || p.Channels[channel] == nil {
		return p, ""
	}
	all, err := t.adapter.members(ctx)
	if err != nil {
		return p, "; the adapter does not answer, so this is what the manifest says, and changes of the channel that an operator approved are not known"
	}
	for _, c := range all {
		if c.Channel != channel {
			continue
		}
		p.Channels[channel] = c.Members
		for _, m := range c.Changes {
			if m.Agent == agent {
				why = fmt.Sprintf("; an operator approved that it %ss the channel (request %d), beside the manifest", m.Change, m.Request)
			}
		}
	}
	return p, why
}

// overtaken says in the adapter's line of a plan which approved changes the
// manifest m ends: those of channels to which it gives other members, and of
// agents that it has no more.
func (w *Warden) overtaken(ctx context.Context, old, m *team.Manifest, changes []wire.Change) {
	i := slices.IndexFunc(changes, func(c wire.Change) bool { return c.Agent == layout.AdapterName })
	if old == nil || i < 0 || !old.HasMessages() || !m.HasMessages() {
		return
	}
	before, after := old.Policy(), m.Policy()
	if !mayOvertake(&before, &after) {
		return
	}
	a, err := w.adapterOf(m.Team)
	if err != nil {
		return
	}
	say := func(format string, args ...any) {
		changes[i].Why = append(changes[i].Why, fmt.Sprintf(format, args...))
		if changes[i].Action == wire.ActionKeep {
			changes[i].Action = wire.ActionUpdate
		}
	}
	all, err := a.members(ctx)
	if err != nil {
		say("channels: the adapter does not answer; what an operator approved beside the manifest for channels that change is dropped")
		return
	}
	for _, c := range all {
		for _, one := range c.Changes {
			if _, stays := after.Agents[one.Agent]; !stays || !slices.Equal(before.Channels[c.Channel], after.Channels[c.Channel]) {
				say("channels: what an operator approved is dropped: %s %ss %s (request %d)", one.Agent, one.Change, c.Channel, one.Request)
			}
		}
	}
}

// mayOvertake says whether a policy may end what was approved beside another.
func mayOvertake(before, after *adapter.Policy) bool {
	for name := range before.Agents {
		if _, stays := after.Agents[name]; !stays {
			return true
		}
	}
	for name, members := range before.Channels {
		if !slices.Equal(members, after.Channels[name]) {
			return true
		}
	}
	return false
}
