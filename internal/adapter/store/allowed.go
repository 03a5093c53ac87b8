package store

import (
	"fmt"

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
