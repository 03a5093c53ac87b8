package adapter

import (
	"fmt"
	"slices"

	"bulkhead/internal/deny"
)

// refuse says why from may not send d; nil: it may.
func (p *Policy) refuse(from string, d *Draft) *deny.Reason {
	agent, known := p.Agents[from]
	if !known {
		return notAllowed(what(from, d), from+" is no agent of this team that has messages",
			fmt.Sprintf("give agents.%s channels or messages in the manifest", from))
	}
	if d.Channel != "" && !p.member(from, d.Channel) {
		return notAllowed(what(from, d), fmt.Sprintf("%s is no member of the channel %s", from, d.Channel),
			fmt.Sprintf("add %s to agents.%s.channels", d.Channel, from))
	}
	if d.To != "" && !slices.Contains(agent.To, d.To) {
		return notAllowed(what(from, d), fmt.Sprintf("%s may not write to %s", from, d.To),
			fmt.Sprintf("add %s to agents.%s.messages.to", d.To, from))
	}
	if d.Type.critical() && !slices.Contains(agent.Critical, d.Type) {
		return notAllowed(what(from, d), fmt.Sprintf("%s may not send the critical type %s", from, d.Type),
			fmt.Sprintf("add %s to agents.%s.messages.critical", d.Type, from))
	}
	return p.exists(from, d)
}

// exists looks that there is somebody to get it.
func (p *Policy) exists(from string, d *Draft) *deny.Reason {
	if d.To != "" {
		if _, ok := p.Agents[d.To]; !ok {
			return notAllowed(what(from, d), "there is no agent "+d.To+" with messages in this team", "write to an agent of the manifest")
		}
	} else if _, ok := p.Channels[d.Channel]; !ok {
		return notAllowed(what(from, d), "there is no channel "+d.Channel, "write to a channel of the manifest")
	}
	return nil
}

// readable says why agent may not read a channel; nil: it may. Members may
// read all of a channel, also what was sent before they joined.
func (p *Policy) readable(agent, channel string) *deny.Reason {
	if p.member(agent, channel) || party(channel, agent) {
		return nil
	}
	return notAllowed(fmt.Sprintf("%s reads %s", agent, channel), fmt.Sprintf("%s is no member of it", agent),
		fmt.Sprintf("add %s to agents.%s.channels", channel, agent))
}
