package protocol

import (
	"errors"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

// The protocol's name and version in hello.
const (
	Name    = "adapter"
	Version = 1
)

// Verbs of agents.
const (
	VerbAuth     = "auth"     // [Auth] -> VerbOK
	VerbSend     = "send"     // [Send] -> VerbSent [Sent]
	VerbReceive  = "receive"  // adapter.ReceiveRequest -> VerbDeliveries [Deliveries]
	VerbAck      = "ack"      // [Leases] -> VerbSettled [Settled]
	VerbExtend   = "extend"   // [Leases] -> VerbSettled
	VerbRefuse   = "refuse"   // [Refuse] -> VerbSettled
	VerbThread   = "thread"   // adapter.ThreadRequest -> VerbPage adapter.Page
	VerbReplay   = "replay"   // adapter.ReplayRequest -> VerbPage
	VerbChannels = "channels" // -> VerbChannelList [Channels]
	VerbMissed   = "missed"   // adapter.MissedRequest -> VerbMissing adapter.Missed
	VerbRequest  = "request"  // adapter.ChannelRequest -> VerbRequested adapter.MembershipRequest
	// VerbCancel ends the wait of a receive, or what a missed reads. It has no answer
	// of its own; a receive is answered, with nothing or with what it had just leased.
	VerbCancel = "cancel" // [Cancel]
)

// Verbs of operators.
const (
	VerbPolicy         = "policy"          // adapter.Policy -> VerbOK
	VerbQueues         = "queues"          // -> VerbQueueList [Queues]
	VerbTail           = "tail"            // [TailRequest] -> VerbTailed adapter.Tail
	VerbOperatorThread = "operator_thread" // [OperatorThread] -> VerbPage
	VerbDead           = "dead"            // [DeadRequest] -> VerbDeadLetters [DeadLetters]
	VerbDeadReplay     = "dead_replay"     // [DeadSet] -> VerbCounted [Counted]
	VerbDeadDrop       = "dead_drop"       // [DeadSet] -> VerbCounted
	VerbOperatorSend   = "operator_send"   // adapter.Draft -> VerbSent, one result
	VerbBackup         = "backup"          // [Backup] -> VerbOK
	VerbMetrics        = "metrics"         // -> VerbText [Text], in the Prometheus text format
	VerbRequests       = "requests"        // [RequestsQuery] -> VerbRequestList [Requests]
	VerbDecide         = "decide"          // [Decision] -> VerbRequested adapter.MembershipRequest
	VerbMembers        = "members"         // -> VerbMemberList [Members]
)

// Answers.
const (
	VerbOK          = "ok"
	VerbError       = "error"  // wire.Failure
	VerbDenied      = "denied" // deny.Reason
	VerbSent        = "sent"
	VerbDeliveries  = "deliveries"
	VerbSettled     = "settled"
	VerbPage        = "page"
	VerbChannelList = "channel_list"
	VerbQueueList   = "queue_list"
	VerbTailed      = "tailed"
	VerbDeadLetters = "dead_letters"
	VerbCounted     = "counted"
	VerbText        = "text"
	VerbMissing     = "missing"
	VerbRequested   = "requested"
	VerbRequestList = "request_list"
	VerbMemberList  = "member_list"
)

// Auth proves who the gateway is, beside its socket and its id.
type Auth struct {
	Token string `json:"token"`
}

// Send carries drafts.
type Send struct {
	Drafts []adapter.Draft `json:"drafts"`
	Late   bool            `json:"late,omitempty"` // an outbox accepted them before: the sender is told of what is refused for good
}

// Sent answers each draft.
type Sent struct {
	Results []Result `json:"results"`
}

// Result is an adapter.SendResult with its error.
type Result struct {
	adapter.SendResult
	Refused
}

// Refused says why one of several was not done: by a rule, or by a failure.
// Neither: it was done.
type Refused struct {
	Reason *deny.Reason `json:"reason,omitempty"`
	Failed string       `json:"failed,omitempty"`
}

// RefusedBy takes an error apart; nil is the zero value.
func RefusedBy(err error) Refused {
	var r *deny.Reason
	switch {
	case err == nil:
		return Refused{}
	case errors.As(err, &r):
		return Refused{Reason: r}
	}
	return Refused{Failed: err.Error()}
}

// Err is the error that RefusedBy took.
func (r Refused) Err() error {
	switch {
	case r.Reason != nil:
		return r.Reason
	case r.Failed != "":
		return errors.New(r.Failed)
	}
	return nil
}

// Deliveries are leased messages.
type Deliveries struct {
	Deliveries []adapter.Delivery `json:"deliveries"`
	More       bool               `json:"more,omitempty"`
}

// Leases names deliveries. Duration is that of extend, in ns.
type Leases struct {
	Leases   []string      `json:"leases"`
	Duration time.Duration `json:"duration,omitempty"`
}

// Refuse gives deliveries back.
type Refuse struct {
	Refusals []adapter.Refusal `json:"refusals"`
	Untaken  bool              `json:"untaken,omitempty"` // all of them
}

// Settled answers each lease.
type Settled struct {
	Results []Refused `json:"results"`
}

// Cancel names the request whose wait ends.
type Cancel struct {
	ID uint64 `json:"id"`
}

// Channels lists channels.
type Channels struct {
	Channels []adapter.ChannelState `json:"channels"`
}

// Queues lists queues.
type Queues struct {
	Queues []adapter.QueueState `json:"queues"`
}

// TailRequest has the arguments of adapter.Operator.Tail.
type TailRequest struct {
	Position int64         `json:"position"`
	Limit    int           `json:"limit,omitempty"`
	Wait     time.Duration `json:"wait,omitempty"` // ns
	Bare     bool          `json:"bare,omitempty"` // leave the bodies out
}

// OperatorThread has the arguments of adapter.Operator.Thread.
type OperatorThread struct {
	Agent string `json:"agent,omitempty"`
	adapter.ThreadRequest
}

// DeadRequest lists dead letters after one.
type DeadRequest struct {
	Recipient string `json:"recipient,omitempty"`
	After     int64  `json:"after,omitempty"`
	Limit     int    `json:"limit,omitempty"`
}

// DeadSet names dead letters.
type DeadSet struct {
	Recipient string  `json:"recipient,omitempty"`
	IDs       []int64 `json:"ids,omitempty"`
}

// DeadLetters are given up deliveries.
type DeadLetters struct {
	DeadLetters []adapter.DeadLetter `json:"dead_letters"`
	More        bool                 `json:"more,omitempty"`
}

// RequestsQuery asks for requests for another membership.
type RequestsQuery struct {
	All bool `json:"all,omitempty"` // those that are over as well
}

// Requests lists requests for another membership.
type Requests struct {
	Requests []adapter.MembershipRequest `json:"requests"`
}

// Decision is an operator's about a request.
type Decision struct {
	ID      int64  `json:"id"`
	Approve bool   `json:"approve"`
	Reason  string `json:"reason,omitempty"`
}

// Members lists channels with who is in them.
type Members struct {
	Channels []adapter.ChannelMembers `json:"channels"`
}

// Counted says how many.
type Counted struct {
	Count int `json:"count"`
}

// Backup names the file to write, as the adapter sees it.
type Backup struct {
	Path string `json:"path"`
}

// Text is text for people or programs.
type Text struct {
	Text string `json:"text"`
}
