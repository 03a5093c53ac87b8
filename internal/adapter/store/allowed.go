package store

import (
	"fmt"
	"slices"

	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
)

// rules are what readers ask, beside the writer.
type rules struct {
	Policy
	changes map[place]*amendment // never changed once it is here
}

// readable says from which sequence on agent may read a channel, or why it may
// not. A member by the manifest may read all of it, also what was sent before it
// joined; one that joined by an approved request only what came after.
func (p *rules) readable(agent, channel string) (first uint64, r *deny.Reason) {
	c := p.changes[place{channel, agent}]
	if !allowed.Member(&p.Policy, agent, channel) && !party(channel, agent) {
		return 0, c.explain(notMember(agent, channel))
	}
	return c.first(), nil
}

func notMember(agent, channel string) *deny.Reason {
	return allowed.Not(fmt.Sprintf("%s reads %s", agent, channel), fmt.Sprintf("%s is no member of it", agent),
		fmt.Sprintf("add %s to agents.%s.channels", channel, agent))
}

func tooEarly(agent, channel string, asked, first uint64) *deny.Reason {
	return allowed.Not(fmt.Sprintf("%s reads %s#%d", agent, channel, asked),
		fmt.Sprintf("%s joined by an approved request, from message %d on", agent, first),
		fmt.Sprintf("add %s to agents.%s.channels, whose members may read all of it", channel, agent))
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
		return t.changes[place{channel, agent}].explain(notMember(agent, channel))
	case slices.Contains(t.policy.Agents[agent].To, peer) || slices.Contains(t.policy.Agents[peer].To, agent):
		return nil
	}
	return allowed.Not(fmt.Sprintf("%s receives from %s", agent, channel), fmt.Sprintf("%s and %s may not write to each other", agent, peer),
		fmt.Sprintf("add %s to agents.%s.messages.to", agent, peer))
}
