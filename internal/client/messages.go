package client

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"bulkhead/internal/wire"
)

// Messages asks a team's adapter one thing (internal/adapter/protocol), through
// the warden. out may be nil.
func (c *Client) Messages(ctx context.Context, team, verb string, body, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("client: %s: %w", verb, err)
	}
	return c.Call(ctx, wire.VerbMessages, wire.MessagesRequest{Team: team, Verb: verb, Body: raw}, out, nil)
}

// Backup gives a copy of what a team's adapter holds, which the caller closes.
// Read it with ReadAt.
func (c *Client) Backup(ctx context.Context, team string) (*os.File, wire.BackupResult, error) {
	var res wire.BackupResult
	files, err := c.call(ctx, wire.VerbMessagesBackup, wire.TeamRequest{Team: team}, &res, nil)
	if err != nil {
		return nil, res, err
	}
	if len(files) != 1 {
		closeAll(files)
		return nil, res, c.lost(ctx, wire.VerbMessagesBackup, fmt.Errorf("%d descriptors, want 1", len(files)))
	}
	return files[0], res, nil
}
