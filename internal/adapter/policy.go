package adapter

import (
	"fmt"
	"slices"
	"strings"
)

// Policy says who may write to whom: the manifest's, made by the warden.
type Policy struct {
	Team   string                 `json:"team"`
	Agents map[string]AgentPolicy `json:"agents"`
	// Channels maps a channel to its members: they may write to it, and get
	// what others write.
	Channels map[string][]string `json:"channels,omitempty"`
	// Orchestrator is the agent that is alerted; empty: operators only.
	Orchestrator string `json:"orchestrator,omitempty"`
}

// AgentPolicy is what one agent may do.
type AgentPolicy struct {
	To       []string `json:"to,omitempty"`       // agents that it may write to directly
	Critical []Type   `json:"critical,omitempty"` // critical types that it may send
	// MaxBytes bounds what of this sender is kept in queues and dead letters;
	// 0: DefaultBytes.
	MaxBytes int64 `json:"maxBytes,omitempty"`
}

// DefaultBytes is the byte quota of a sender: 64 MiB.
const DefaultBytes = 64 << 20

// clone makes the policy independent of its giver.
func (p *Policy) clone() Policy {
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

// check refuses a policy whose names could be taken for something else.
func (p *Policy) check() error {
	for name := range p.Agents {
		if name == System || name == OperatorName || name == "" || len(name) > 64 || strings.ContainsAny(name, "@+ \x00") {
			return fmt.Errorf("policy: %q cannot be the name of an agent: it is reserved or malformed", name)
		}
	}
	for channel, members := range p.Channels {
		if !channelForm.MatchString(channel) {
			return fmt.Errorf("policy: %q is no name of a channel: it must match %s", channel, channelForm)
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
