package store

import (
	"fmt"
	"slices"

	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
)

// readable says why agent may not read a channel; nil: it may. Members may
// read all of a channel, also what was sent before they joined.
func readable(p *Policy, agent, channel string) *deny.Reason {
	if allowed.Member(p, agent, channel) || party(channel, agent) {
		return nil
	}
	return allowed.Not(fmt.Sprintf("%s reads %s", agent, channel), fmt.Sprintf("%s is no member of it", agent),
		fmt.Sprintf("add %s to agents.%s.channels", channel, agent))
}

// receivable says why agent may not ask for the messages of one channel alone;
// nil: it may. What waits for it from a channel that it was a member of is still
// its own.
func (t *txn) receivable(agent, channel string) *deny.Reason {
	if allowed.Member(&t.policy, agent, channel) {
		return nil
	}
	if ch, q := t.channels[channel], t.queues[t.agents[agent]]; ch != nil && q != nil {
		if l := q.channels[ch.id]; l != nil && len(l.entries) > 0 {
			return nil
		}
	}
	peer := other(channel, agent)
	switch {
	case peer == System || peer == OperatorName || peer == AlertName:
		return nil
	case peer == "":
		return readable(&t.policy, agent, channel)
	case slices.Contains(t.policy.Agents[agent].To, peer) || slices.Contains(t.policy.Agents[peer].To, agent):
		return nil
	}
	return allowed.Not(fmt.Sprintf("%s receives from %s", agent, channel), fmt.Sprintf("%s and %s may not write to each other", agent, peer),
		fmt.Sprintf("add %s to agents.%s.messages.to", agent, peer))
}
