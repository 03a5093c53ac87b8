package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	"bulkhead/internal/wire"
)

// Calls hears of the tool calls of an agent from its own gateway until ctx ends,
// the gateway does, or call fails. started is called once nothing will be missed
// any more. What comes is what the gateway says, which the agent may have taken
// over.
func (c *Client) Calls(ctx context.Context, req wire.CallsRequest, started func(), call func(json.RawMessage) error) error {
	files, err := c.call(ctx, wire.VerbCalls, req, nil, nil)
	if err != nil {
		return err
	}
	defer closeAll(files)
	if len(files) != 1 {
		return c.lost(ctx, wire.VerbCalls, fmt.Errorf("%d descriptors, want 1", len(files)))
	}
	nc, err := net.FileConn(files[0])
	if err != nil {
		return c.lost(ctx, wire.VerbCalls, err)
	}
	u, ok := nc.(*net.UnixConn)
	if !ok {
		_ = nc.Close()
		return c.lost(ctx, wire.VerbCalls, fmt.Errorf("a %T was passed, want a unix socket", nc))
	}
	conn := wire.New(u)
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	for {
		m, more, err := answer(conn, nil)
		closeAll(more)
		if err != nil {
			return err
		}
		switch m.Verb {
		case wire.VerbStarted:
			started()
		case wire.VerbEvent:
			var e wire.GatewayEvent
			if err := json.Unmarshal(m.Body, &e); err != nil {
				return fmt.Errorf("client: an event of the gateway does not decode: %w", err)
			}
			if len(e.Record) == 0 {
				continue
			}
			if err := call(e.Record); err != nil {
				return err
			}
		default:
			return fmt.Errorf("client: unexpected answer %.40q of the gateway", m.Verb)
		}
	}
}
