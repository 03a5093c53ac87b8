// Package allowed decides by the policy who may send what to whom. The message store
// asks it for each message, and the warden when an operator asks why.
package allowed

import (
	"fmt"
	"slices"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

// Refusal says why from may not send d; nil: it may.
func Refusal(p *adapter.Policy, from string, d *adapter.Draft) *deny.Reason {
	agent, known := p.Agents[from]
	if !known {
		return Not(What(from, d), from+" is no agent of this team that has messages",
			fmt.Sprintf("give agents.%s channels or messages in the manifest", from))
	}
	if d.Channel != "" && !Member(p, from, d.Channel) {
		return Not(What(from, d), fmt.Sprintf("%s is no member of the channel %s", from, d.Channel),
			fmt.Sprintf("add %s to agents.%s.channels", d.Channel, from))
	}
	if d.To != "" && !slices.Contains(agent.To, d.To) {
		return Not(What(from, d), fmt.Sprintf("%s may not write to %s", from, d.To),
			fmt.Sprintf("add %s to agents.%s.messages.to", d.To, from))
	}
	if Critical(d.Type) && !slices.Contains(agent.Critical, d.Type) {
		return Not(What(from, d), fmt.Sprintf("%s may not send the critical type %s", from, d.Type),
			fmt.Sprintf("add %s to agents.%s.messages.critical", d.Type, from))
	}
	return Exists(p, from, d)
}

// Exists looks that there is somebody to get it; nil: there is.
func Exists(p *adapter.Policy, from string, d *adapter.Draft) *deny.Reason {
	if d.To != "" {
		if _, ok := p.Agents[d.To]; !ok {
			return Not(What(from, d), "there is no agent "+d.To+" with messages in this team", "write to an agent of the manifest")
		}
	} else if _, ok := p.Channels[d.Channel]; !ok {
		return Not(What(from, d), "there is no channel "+d.Channel, "write to a channel of the manifest")
	}
	return nil
}

// Member says whether an agent is a member of a channel.
func Member(p *adapter.Policy, agent, channel string) bool {
	return slices.Contains(p.Channels[channel], agent)
}

// Critical says whether a type is one that is never evicted.
func Critical(t adapter.Type) bool {
	return t == adapter.Escalation || t == adapter.PolicyUpdate || t == adapter.GovernanceDirective
}

// Not is a refusal by the policy.
func Not(what, why, mend string) *deny.Reason {
	return &deny.Reason{Layer: deny.LayerMessages, Code: deny.MessageNotAllowed, What: what, Why: why, Mend: mend}
}

// What names a message, for people. A draft whose form is wrong may hold anything, so its words are cut.
func What(from string, d *adapter.Draft) string {
	to := d.Channel
	if d.To != "" {
		to = d.To
	}
	return fmt.Sprintf("%.64s from %s to %.64s", d.Type, from, to)
}
