package wire

// WorkspaceRequest asks for an agent's workspace.
type WorkspaceRequest struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
}

// WorkspaceResult comes with the folder's descriptor.
type WorkspaceResult struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Agent         string `json:"agent"`
	Owner         uint32 `json:"owner"` // host id that files there belong to
}
