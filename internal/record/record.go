// Package record holds the one type in which every decision is written down:
// egress, tool call, message, secret use, exec. One record is one JSON line.
// Records carry no payloads and no secrets.
package record

import (
	"encoding/json"
	"time"

	"bulkhead/internal/deny"
)

// SchemaVersion is the version of the record's JSON form.
const SchemaVersion = 1

// Kind says what was decided about.
type Kind string

// The kinds of record.
const (
	Egress   Kind = "egress"
	Tool     Kind = "tool"
	Message  Kind = "message"
	Secret   Kind = "secret"
	Exec     Kind = "exec"
	Life     Kind = "lifecycle" // started, ready, exited, restarted, adopted
	Repair   Kind = "repair"    // a protection was found missing and put back
	Approval Kind = "approval"  // a call waits for a person, who approves or denies it; grants
	Drift    Kind = "drift"     // a check found that something does not hold any more, or holds again
)

// Verdict is the outcome.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
	Failed  Verdict = "failed"  // allowed, but it did not work
	Started Verdict = "started" // allowed and begun; its outcome follows, or the process died before
)

// Targets that programs look for.
const (
	Notice = "notice" // of Life: an agent tells its operator something, which is Detail
	Outbox = "outbox" // of Message, failed: a message was lost, since nobody could keep it
	Gap    = "gap"    // of Message, failed: messages to the agent are missing and cannot be had any more
)

// Record is one decision.
type Record struct {
	SchemaVersion int          `json:"schemaVersion"`
	Time          time.Time    `json:"time"` // UTC
	Team          string       `json:"team"`
	Agent         string       `json:"agent"`
	Kind          Kind         `json:"kind"`
	Verdict       Verdict      `json:"verdict"`
	Target        string       `json:"target,omitempty"` // "api.example.com:443", a tool, a path
	Count         uint64       `json:"count,omitempty"`  // how many times, when repeats were folded into one line
	Detail        string       `json:"detail,omitempty"`
	Reason        *deny.Reason `json:"reason,omitempty"` // set when denied, and when failed for one
	// Of a tool's call: the token's id, the input without contents and secrets
	// (their size and a keyed hash instead), and how long it took.
	Token  string          `json:"token,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	Micros int64           `json:"micros,omitempty"`
}
