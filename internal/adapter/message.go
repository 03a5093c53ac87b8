package adapter

import (
	"encoding/json"
	"time"
)

// SchemaVersion is the version of the JSON forms of this package.
const SchemaVersion = 1

// Limits of messages, in force whatever the policy says.
const (
	MaxBody   = 1 << 20 // bytes of a body; more is 413
	MaxBatch  = 256     // drafts in one send
	QueueSize = 500     // undelivered messages of one recipient
	MaxTries  = 3       // retries before a delivery becomes a dead letter
)

// Type says what a message is for: ^[a-z][a-z0-9_]{0,63}$. The types below
// have a meaning of their own; every other is an ordinary message.
type Type string

// Critical types are never evicted from a queue. Only an agent whose policy
// names the type may send it.
const (
	Escalation          Type = "escalation"
	PolicyUpdate        Type = "policy_update"
	GovernanceDirective Type = "governance_directive"
)

// Contracts are kept for ever, with the critical types that are policy.
const (
	TaskAssignment Type = "task_assignment"
	PolicyDecision Type = "policy_decision"
)

// Notices are sent by the adapter itself, from [System]; no agent may send one.
const (
	DeliveryFailed Type = "delivery_failed" // to the sender of a message that became a dead letter
	DeadLettered   Type = "dead_lettered"   // to the orchestrator, when that happens
)

// System is the sender of notices. No agent may have this name.
const System = "bulkhead"

// Priority orders what one recipient gets from different channels. Within a
// channel the sequence alone decides.
type Priority string

// The priorities. The zero value of a draft means normal.
const (
	Low    Priority = "low"
	Normal Priority = "normal"
	High   Priority = "high"
)

// Draft is what a sender gives. Exactly one of To and Channel is set.
type Draft struct {
	IdempotencyKey string          `json:"idempotency_key"` // UUID, made by the sender
	To             string          `json:"to,omitempty"`    // an agent's name
	Channel        string          `json:"channel,omitempty"`
	Type           Type            `json:"type"`
	Priority       Priority        `json:"priority,omitempty"`
	ReplyTo        uint64          `json:"reply_to_sequence_id,omitempty"` // a sequence of the same channel
	Body           json.RawMessage `json:"body"`                           // any JSON value, at most MaxBody bytes
}

// Message is a draft that was taken: on disk, with its place in its channel.
//
// Two agents that write to each other share one channel, [Direct]; so a reply
// stays in the channel of what it answers and threads need no second key.
type Message struct {
	IdempotencyKey string          `json:"idempotency_key"`
	Sequence       uint64          `json:"channel_sequence_id"` // from 1, gapless per channel
	Time           time.Time       `json:"timestamp"`           // of receipt, UTC; never before that of the sequence before
	From           string          `json:"from"`                // from the authenticated caller, never from the body
	To             string          `json:"to,omitempty"`
	Channel        string          `json:"channel"`
	Type           Type            `json:"type"`
	Priority       Priority        `json:"priority"`
	ReplyTo        uint64          `json:"reply_to_sequence_id,omitempty"`
	Body           json.RawMessage `json:"body"`
}

// Direct is the channel of two agents: "@" and both names in order, joined by
// "+". No channel of a manifest can have such a name.
func Direct(a, b string) string {
	if a > b {
		a, b = b, a
	}
	return "@" + a + "+" + b
}

// Delivery is one message on its way to one recipient, under a lease: until
// Expires nobody else gets it, afterwards it comes again.
type Delivery struct {
	Message
	Lease   string    `json:"lease"`   // opaque; what Ack, Refuse and Extend take
	Attempt int       `json:"attempt"` // from 1
	Expires time.Time `json:"lease_expires"`
	// Missed is the last message of the channel that found no place in this
	// recipient's queue; 0: there is none. The gateway asks for it ([MissedRequest]).
	Missed uint64 `json:"missed_sequence_id,omitempty"`
}

// DeadLetter is a delivery that was given up.
type DeadLetter struct {
	ID        int64     `json:"id"`
	Recipient string    `json:"recipient"`
	Reason    string    `json:"reason"` // in words, e.g. "refused 4 times; the last reason: ..."
	At        time.Time `json:"at"`
	Attempts  int       `json:"attempts"`
	Message
}
