package wire

// WorkspaceRequest asks for an agent's workspace.
type WorkspaceRequest struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
	For   string `json:"for"` // one of those below; for the record: whoever has the folder can do all of it
}

// What an operator wants a workspace for.
const (
	WorkspaceDiff = "diff"
	WorkspacePull = "pull"
	WorkspacePush = "push"
)

// WorkspaceResult comes with the folder's descriptor.
type WorkspaceResult struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Agent         string `json:"agent"`
	Owner         uint32 `json:"owner"` // host id that files there belong to
}
