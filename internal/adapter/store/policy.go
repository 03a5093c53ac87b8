package store

import (
	"fmt"
	"slices"
	"strings"
)

// clonePolicy makes the policy independent of its giver.
func clonePolicy(p *Policy) Policy {
	out := *p
	out.Agents, out.Channels = map[string]AgentPolicy{}, map[string][]string{}
	for name, a := range p.Agents {
		a.To, a.Critical = slices.Clone(a.To), slices.Clone(a.Critical)
		out.Agents[name] = a
	}
	for name, members := range p.Channels {
		out.Channels[name] = slices.Clone(members)
	}
	return out
}

// checkPolicy refuses one whose names could be taken for something else.
func checkPolicy(p *Policy) error {
	for name := range p.Agents {
		if name == System || name == OperatorName || name == AlertName || name == "" || len(name) > 64 || strings.ContainsAny(name, "@+ \x00") {
			return fmt.Errorf("policy: %q cannot be the name of an agent: it is reserved or malformed", name)
		}
	}
	for channel, members := range p.Channels {
		if !channelForm().MatchString(channel) {
			return fmt.Errorf("policy: %q is no name of a channel: it must match %s", channel, channelForm())
		}
		for i, m := range members {
			if _, ok := p.Agents[m]; !ok || slices.Contains(members[:i], m) {
				return fmt.Errorf("policy: member %q of channel %s is named twice or is no agent", m, channel)
			}
		}
	}
	if _, ok := p.Agents[p.Orchestrator]; !ok && p.Orchestrator != "" {
		return fmt.Errorf("policy: the orchestrator %q is no agent", p.Orchestrator)
	}
	return nil
}
