package wire

import "time"

// Verbs of signed evidence (docs/contracts/evidence.md).
const (
	VerbEvidenceMake   = "evidence.make"   // [EvidenceRequest] -> [EvidenceEntry]: verify and prove, sign, keep
	VerbEvidenceList   = "evidence.list"   // [TeamRequest] -> [EvidenceList]
	VerbEvidenceFile   = "evidence.file"   // [EvidenceFileRequest] -> [EvidenceEntry] with the file's descriptor
	VerbEvidenceKeys   = "evidence.keys"   // {} -> [EvidenceKeys]: public keys
	VerbEvidenceRotate = "evidence.rotate" // {} -> [EvidenceKeys], after a new key was made
)

// EvidenceRequest asks for new evidence of a whole team.
type EvidenceRequest struct {
	Team       string `json:"team"`
	NoControls bool   `json:"noControls,omitempty"`
}

// EvidenceFileRequest names one file of a team's history.
type EvidenceFileRequest struct {
	Team string `json:"team"`
	ID   string `json:"id"`
}

// EvidenceEntry is one file of the history.
type EvidenceEntry struct {
	SchemaVersion int       `json:"schemaVersion,omitempty"`
	ID            string    `json:"id"`
	Team          string    `json:"team"`
	Time          time.Time `json:"time"`
	Result        string    `json:"result"` // "PASSED", "WARNED", "FAILED"
	Bytes         int64     `json:"bytes"`
	Path          string    `json:"path"`
}

// EvidenceList is a team's history, oldest first.
type EvidenceList struct {
	SchemaVersion int             `json:"schemaVersion"`
	Team          string          `json:"team"`
	Evidence      []EvidenceEntry `json:"evidence"`
}

// EvidenceKeys are the public keys of this host's warden.
type EvidenceKeys struct {
	SchemaVersion int           `json:"schemaVersion"`
	Keys          []EvidenceKey `json:"keys"` // the one in use first
}

// EvidenceKey is one public key.
type EvidenceKey struct {
	ID      string    `json:"id"`
	PEM     string    `json:"pem"`
	Current bool      `json:"current"` // signs
	Made    time.Time `json:"made"`
}
