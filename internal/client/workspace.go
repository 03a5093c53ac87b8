package client

import (
	"context"
	"fmt"
	"os"

	"bulkhead/internal/wire"
)

// Workspace gives the open folder of an agent's workspace, which the caller
// closes. Everything below it is the agent's.
func (c *Client) Workspace(ctx context.Context, req wire.WorkspaceRequest) (*os.File, wire.WorkspaceResult, error) {
	var res wire.WorkspaceResult
	files, err := c.call(ctx, wire.VerbWorkspace, req, &res, nil)
	if err != nil {
		return nil, res, err
	}
	if len(files) != 1 {
		closeAll(files)
		return nil, res, c.lost(ctx, wire.VerbWorkspace, fmt.Errorf("%d descriptors, want 1", len(files)))
	}
	return files[0], res, nil
}
