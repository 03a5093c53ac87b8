package dialer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// addresses answers where dial would connect to. Nothing is connected and no
// place is taken; the pin is one that dial would find.
func (s *server) addresses(ctx context.Context, c *wire.Conn, id uint64, q wire.DialRequest) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pinned, _, reason := s.pins.get(ctx, q)
	if reason == nil && pinned.Via != nil {
		reason = &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NameUnresolved, What: asked(q), Why: "it is reached through the upstream proxy, which alone resolves it",
			Mend: "connect to it by its name; or write the name into upstreamProxy.except in bulkhead.yaml",
		}
	}
	if reason != nil {
		_ = c.Send(id, wire.VerbDenied, wire.Denied{Reason: *reason})
		return
	}
	out := wire.Answer{Addresses: make([]netip.Addr, len(pinned.Addresses))}
	for i, a := range pinned.Addresses {
		out.Addresses[i] = a.Addr()
	}
	_ = c.Send(id, wire.VerbAddresses, out)
}

// Addresses gives the addresses that Dial would connect to, in that order. A
// refusal is a *deny.Reason.
func (c *Client) Addresses(ctx context.Context, host string, port uint16) ([]netip.Addr, error) {
	what := wire.DialRequest{Host: host, Port: port}
	r, err := c.exchange(ctx, wire.VerbAddresses, what)
	if errors.Is(err, errLost) && ctx.Err() == nil { // the dialer was restarted: once more
		r, err = c.exchange(ctx, wire.VerbAddresses, what)
	}
	if err != nil {
		return nil, describe(what, err)
	}
	for _, f := range r.files {
		_ = f.Close()
	}
	switch r.m.Verb {
	case wire.VerbAddresses:
		var out wire.Answer
		if err := json.Unmarshal(r.m.Body, &out); err != nil {
			return nil, describe(what, err)
		}
		return out.Addresses, nil
	case wire.VerbDenied:
		return nil, describe(what, denied(r.m))
	}
	return nil, describe(what, fmt.Errorf("dialer: answer %q", r.m.Verb))
}

// denied reads the reason of a refusal.
func denied(m wire.Message) error {
	var d wire.Denied
	if err := json.Unmarshal(m.Body, &d); err != nil {
		return fmt.Errorf("dialer: answer: %w", err)
	}
	return &d.Reason
}
