// Package protocol is what is said to audit: its config, what operators ask, and
// how gateways write.
package protocol

import (
	"encoding/json"
	"time"

	"bulkhead/internal/record"
)

// What gateways greet audit with. After auth (internal/hub) the gateway sends
// [VerbAppend] and waits for [VerbTaken]; one at a time.
const (
	Name    = "audit"
	Version = 1

	VerbAppend = "append" // [Append] -> VerbTaken [Taken], or VerbError
	VerbTaken  = "taken"
)

// Bounds of one [Append].
const (
	MaxRecords = 1000
	MaxRecord  = record.MaxBytes // of one record's JSON
)

// Append are records in the order of the gateway's own list.
type Append struct {
	// List names that list: it was made with the file that it lies in, and numbers
	// begin anew with another.
	List    string   `json:"list"`
	Records []Record `json:"records"`
}

// Record is one line of a gateway's list. Its number grows; audit takes each
// number of a gateway once, so that what was sent again after a lost answer is
// there once.
type Record struct {
	Seq    uint64          `json:"seq"`
	Record json.RawMessage `json:"record"` // record.Record
}

// Taken says that everything up to Seq is on disk, and that nobody changes it
// from here on.
type Taken struct {
	Seq uint64 `json:"seq"`
}

// Verbs of operators.
const (
	VerbTail   = "tail"   // [Tail] -> [Lines]
	VerbVerify = "verify" // [Verify] -> [Verified]
	VerbHead   = "head"   // struct{} -> [Head]; the warden takes note of it
)

// Files are those of audit's data folder.
func Files() []string { return []string{"log.jsonl", "key", "key.pub"} }

// Config is what audit is told at its start.
type Config struct {
	Data string `json:"data"` // the path of its folder, as it sees it
	// Witnesses are heads that root took note of, by lines. A log that does not
	// hold them all is not opened.
	Witnesses []Head `json:"witnesses,omitempty"`
}

// Head is the log at one moment.
type Head struct {
	Lines int64  `json:"lines"`
	Root  string `json:"root"` // of the hash tree, base64
}

// Verify asks for a whole reading of the log. The warden writes the witnesses.
type Verify struct {
	Witnesses []Head `json:"witnesses"`
}

// Tail asks for lines. After and the answer's Position go round.
type Tail struct {
	Team  string `json:"team,omitempty"`
	Agent string `json:"agent,omitempty"`
	// After is the index of a line: later ones are wanted. Negative: the last
	// ones, as many as it says.
	After int64 `json:"after"`
	Limit int   `json:"limit,omitempty"` // 0: 200
}

// Lines are lines of the log, in order.
type Lines struct {
	Lines    []Line `json:"lines"`
	Position int64  `json:"position"` // for the next Tail
}

// Line is one line.
type Line struct {
	Index  int64           `json:"index"`
	Time   time.Time       `json:"time"` // when audit took it
	Team   string          `json:"team"`
	Agent  string          `json:"agent"`
	Seq    uint64          `json:"seq"` // of that gateway's list
	Record json.RawMessage `json:"record"`
}

// Verified says what a whole reading of the log found. It is well when Problem
// is empty.
type Verified struct {
	SchemaVersion int    `json:"schemaVersion"`
	Lines         int64  `json:"lines"`
	Root          string `json:"root"` // of the hash tree, base64
	// Checkpoint is the last signed statement (C2SP signed note), and Covers how
	// many lines it is about.
	Checkpoint string `json:"checkpoint,omitempty"`
	Covers     int64  `json:"covers"`
	Key        string `json:"key"`       // the verifier key of checkpoints
	Witnesses  int    `json:"witnesses"` // heads that root took note of, each of which was compared
	Problem    string `json:"problem,omitempty"`
}
