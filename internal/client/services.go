package client

import (
	"context"
	"encoding/json"
	"fmt"

	"bulkhead/internal/wire"
)

// Tokens asks control one thing (internal/control/protocol), through the warden.
func (c *Client) Tokens(ctx context.Context, verb string, body, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("client: %s: %w", verb, err)
	}
	return c.Call(ctx, wire.VerbTokens, wire.TokensRequest{Verb: verb, Body: raw}, out, nil)
}

// Audit asks audit one thing (internal/audit/protocol), through the warden.
func (c *Client) Audit(ctx context.Context, verb string, body, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("client: %s: %w", verb, err)
	}
	return c.Call(ctx, wire.VerbAudit, wire.AuditRequest{Verb: verb, Body: raw}, out, nil)
}
