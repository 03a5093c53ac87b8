package store

import (
	"cmp"
	"maps"
	"slices"
)

// states are the channels of one agent: those that it is a member of, those
// of the agents that it may write to or that may write to it, and those with
// messages in them.
func (c *core) states(agent string) []ChannelState {
	members := map[string][]string{}
	for name, all := range c.policy.Channels {
		if slices.Contains(all, agent) {
			members[name] = slices.Clone(all)
		}
	}
	direct := func(peer string) { members[Direct(agent, peer)] = []string{min(agent, peer), max(agent, peer)} }
	for _, to := range c.policy.Agents[agent].To {
		direct(to)
	}
	for from, p := range c.policy.Agents {
		if slices.Contains(p.To, agent) {
			direct(from)
		}
	}
	for name := range c.channels {
		if peer := other(name, agent); peer != "" {
			direct(peer)
		}
	}
	var lanes map[int64]*lane
	if q := c.queues[c.agents[agent]]; q != nil {
		lanes = q.channels
	}
	out := make([]ChannelState, 0, len(members))
	for _, name := range slices.SortedFunc(maps.Keys(members), cmp.Compare) {
		s := ChannelState{Channel: name, Members: members[name], From: c.firstOf(agent, name)}
		if ch := c.channels[name]; ch != nil {
			s.Last = ch.last
			if l := lanes[ch.id]; l != nil {
				s.Queued = len(l.entries)
			}
		}
		out = append(out, s)
	}
	return out
}
