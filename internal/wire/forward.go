package wire

// ConnectRequest is VerbConnect of the shim protocol.
type ConnectRequest struct {
	Port uint16 `json:"port"`
}

// ForwardRequest asks the warden for one connection to a port on which an
// agent listens.
type ForwardRequest struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
	Port  uint16 `json:"port"`
	// Check connects nowhere: it only says whether the port is listed and the
	// agent runs.
	Check bool `json:"check,omitempty"`
}

// ForwardResult comes with one connected TCP socket, unless Check was asked.
type ForwardResult struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Agent         string `json:"agent"`
	Port          uint16 `json:"port"`
}
