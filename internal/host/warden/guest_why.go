package warden

import (
	"context"
	"net"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// whyGuest answers for an agent without a runtime: of it there are destinations
// and limits of connections only.
func (w *Warden) whyGuest(ctx context.Context, a *agentRun, what string) (*wire.WhyResult, error) {
	res := &wire.WhyResult{SchemaVersion: 1, Team: a.Place.Team, Agent: a.Place.Name, What: what}
	word, rest, ok := worded(what)
	switch {
	case ok && word == "limit" && rest == "connections":
		if err := a.whyLimit(res, rest); err != nil {
			return nil, err
		}
		res.Mend = "remove the guest and make it anew with limits.connections, within front.guests.limits in bulkhead.yaml"
		return res, nil
	case ok && word == "tool":
		if err := a.whyTool(res, rest); err != nil {
			return nil, err
		}
		if res.Verdict != wire.WhyAllowed {
			res.Mend = "remove the guest and make it anew with this in tools, within front.guests.tools in bulkhead.yaml"
		}
		return res, nil
	case ok && (word == "message" || word == "topic"):
		res.Kind, res.Layer, res.Verdict, res.Code = word, deny.LayerMessages, wire.WhyDenied, deny.MessageNotAllowed
		if word == "topic" {
			res.Layer, res.Code = deny.LayerTools, deny.ToolNotAllowed
		}
		res.Rule = "guests have no messages and no public topics: the manifest names none of them"
		res.Mend = "write an agent of the manifest for it"
		return res, nil
	}
	host, port, err := net.SplitHostPort(what)
	if err != nil || ok || strings.HasPrefix(what, "/") {
		return nil, badInput(a.Place.Name+" is a guest: it has no runtime, and so neither files nor system calls nor secrets of one", "ask for host:port, tool:NAME or limit:connections")
	}
	err = a.whyDestination(ctx, res, host, port)
	if res.Code == deny.NotListed || res.Code == deny.PortNotListed {
		res.Mend = "remove the guest and make it anew with this in egress, within front.guests.egress in bulkhead.yaml"
	}
	return res, err
}
