package net

import (
	"context"
	"net/netip"

	"bulkhead/internal/deny"
	"bulkhead/internal/dial"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

// Resolved is the answer of net_dns_resolve.
type Resolved struct {
	Hostname  string       `json:"hostname"`
	Addresses []netip.Addr `json:"addresses"`
}

// hostname is the name that is asked about, or why there is none.
func hostname(in tool.Input) (h dial.Host, why string) {
	h, err := dial.Normalise(in.String("hostname"))
	switch {
	case err != nil:
		return h, err.Error()
	case h.Name == "":
		return h, "it is an address already"
	}
	return h, ""
}

// nameScope is to what a grant to resolve may be bound: the name.
func nameScope(in tool.Input) (string, *deny.Reason) {
	h, why := hostname(in)
	if why != "" {
		return "", misread("hostname", deny.Field{Name: "hostname", Why: why})
	}
	return h.Name, nil
}

// resolve answers with what a connection would use: the pinned addresses. A
// name that is not listed is not asked about, so nothing is told to its owner's
// servers.
func (t *Tools) resolve(ctx context.Context, c *tool.Call) (any, error) {
	h, why := hostname(c.In)
	if why != "" {
		return nil, invalid(c, deny.Field{Name: "hostname", Why: why})
	}
	if reason := narrow(c, h, h.Name); reason != nil {
		return nil, reason
	}
	policy := t.cfg.Policy()
	port, ok := policy.Port(h)
	if !ok {
		_, reason := policy.Check(h.Name, defaultPort("https"))
		if reason == nil { // listed for one connection, which this would use up
			reason = tool.Refuse(deny.ToolNotAllowed, h.Name, "it is allowed for one connection only, and asking would use that up", "connect to it")
		}
		t.cfg.Record(h.Name, record.Denied, reason)
		return nil, reason
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	addrs, err := t.cfg.Resolve(ctx, h.Name, port)
	if err != nil {
		return nil, t.failed(ctx, c, dial.Target(h, port), err)
	}
	t.cfg.Record(dial.Target(h, port), record.Allowed, nil)
	return Resolved{Hostname: h.Name, Addresses: addrs}, nil
}
