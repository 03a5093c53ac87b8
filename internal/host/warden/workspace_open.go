package warden

import (
	"encoding/json"
	"fmt"
	"slices"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// workspace passes the descriptor of an agent's workspace to the operator, who
// is root, and says to whom what is written there must belong.
func (c *call) workspace() error {
	var req wire.WorkspaceRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.agent(req.Team, req.Agent)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{wire.WorkspaceDiff, wire.WorkspacePull, wire.WorkspacePush}, req.For) {
		return badInput(fmt.Sprintf("the workspace is wanted for %.40q", req.For), "use the bulkhead program of the same build")
	}
	f, err := tree.OpenLeaf(a.Place.Workspace(), a.IDs.Runtime())
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	x := &act{c: c, a: a, target: "workspace"}
	x.tell(record.Allowed, "ws "+req.For+x.by(), 0)
	return c.conn.Send(c.id, wire.VerbResult, wire.WorkspaceResult{
		SchemaVersion: 1, Team: a.Place.Team, Agent: a.Place.Name, Owner: a.IDs.Runtime(),
	}, f)
}
