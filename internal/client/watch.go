package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"bulkhead/internal/wire"
)

// Watch hears of events until ctx ends or the warden does. started is called
// once nothing will be missed any more, then event for each of them, all on
// this goroutine; an error of event ends the watch and is returned.
func (c *Client) Watch(ctx context.Context, req wire.WatchRequest, started func(), event func(json.RawMessage) error) error {
	return c.follow(ctx, wire.VerbWatch, req, started, event)
}

// WatchChecks is Watch for the checks of a team ([wire.Check]).
func (c *Client) WatchChecks(ctx context.Context, req wire.CheckRequest, event func(json.RawMessage) error) error {
	return c.follow(ctx, wire.VerbVerifyWatch, req, func() {}, event)
}

func (c *Client) follow(ctx context.Context, verb string, req any, started func(), event func(json.RawMessage) error) error {
	conn, _, err := c.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Unix().SetDeadline(time.Now()) })
	defer stop()
	if err := conn.Send(1, verb, req); err != nil {
		return c.lost(ctx, verb, err)
	}
	for {
		m, files, err := answer(conn, nil)
		closeAll(files)
		if err != nil {
			return c.lost(ctx, verb, err)
		}
		switch m.Verb {
		case wire.VerbStarted:
			started()
		case wire.VerbEvent:
			if err := event(m.Body); err != nil {
				return err
			}
		default:
			return c.lost(ctx, verb, fmt.Errorf("unexpected answer %q", m.Verb))
		}
	}
}
