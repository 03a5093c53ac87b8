package wire

import "encoding/json"

// Verbs of the warden protocol towards a team's message adapter.
const (
	// VerbMessages is passed on to the adapter: [MessagesRequest] -> the body of
	// the adapter's own answer (internal/adapter/protocol).
	VerbMessages = "messages"
	// VerbMessagesBackup: [TeamRequest] -> [BackupResult] with the descriptor of
	// a copy that nobody else has any more.
	VerbMessagesBackup = "messages_backup"
	// VerbMessagesRepair ends the adapter, repairs its file, and starts it
	// again: [TeamRequest] -> [RepairResult].
	VerbMessagesRepair = "messages_repair"
)

// MessagesRequest is one request of an operator to an adapter. Body is that of
// the adapter protocol's verb.
type MessagesRequest struct {
	Team string          `json:"team"`
	Verb string          `json:"verb"`
	Body json.RawMessage `json:"body"`
}

// BackupResult comes with the copy's descriptor.
type BackupResult struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Bytes         int64  `json:"bytes"`
}

// RepairResult says what a repair found.
type RepairResult struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Report        string `json:"report"` // in words, one line per finding
	Ready         bool   `json:"ready"`  // the adapter runs again
}
