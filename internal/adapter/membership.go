package adapter

import "time"

// Bounds of requests for another membership.
const (
	MaxRequests   = 32                 // that wait for an operator
	RequestLife   = 7 * 24 * time.Hour // then it is over without a decision
	MaxReason     = 1000               // bytes of a reason, the requester's or the operator's
	KeptDecisions = 100                // of the last requests, those that are over and still shown
)

// ChannelDecided is a notice: what became of a request for another membership.
// It goes to who asked and, when it was approved, to the agent concerned.
const ChannelDecided Type = "channel_decided"

// Change is what becomes of an agent's membership of a channel.
type Change string

// The changes.
const (
	Join  Change = "join"
	Leave Change = "leave"
)

// ChannelRequest asks that an agent joins or leaves a channel of the manifest.
// Only the orchestrator may ask, and only an operator decides.
type ChannelRequest struct {
	Channel string `json:"channel"`
	Agent   string `json:"agent"`
	Change  Change `json:"change"`
	Reason  string `json:"reason"` // for the operator, 1..MaxReason bytes
}

// RequestState is what became of a request.
type RequestState string

// The states. All but the first are for good.
const (
	RequestOpen      RequestState = "open"
	RequestApproved  RequestState = "approved"
	RequestRefused   RequestState = "refused"
	RequestExpired   RequestState = "expired"   // nobody decided in RequestLife
	RequestOvertaken RequestState = "overtaken" // the manifest changed so that it means nothing any more
)

// MembershipRequest is a [ChannelRequest] that was taken: on disk.
type MembershipRequest struct {
	ID int64  `json:"id"` // never given twice
	By string `json:"by"` // from the authenticated caller
	ChannelRequest
	At        time.Time    `json:"at"`
	Expires   time.Time    `json:"expires"`
	State     RequestState `json:"state"`
	Decided   time.Time    `json:"decided,omitzero"`
	Why       string       `json:"why,omitempty"`       // the operator's reason, or what overtook it
	Duplicate bool         `json:"duplicate,omitempty"` // it was asked for, or decided so, before
}

// ChannelMembers is a channel of the manifest as operators see it.
type ChannelMembers struct {
	Channel string             `json:"channel"`
	Members []string           `json:"members"` // now
	Last    uint64             `json:"last_sequence_id"`
	Changes []MembershipChange `json:"changes"` // what differs from the manifest
}

// MembershipChange is an approved change that the manifest does not have.
type MembershipChange struct {
	Agent   string    `json:"agent"`
	Change  Change    `json:"change"`
	Request int64     `json:"request"`
	At      time.Time `json:"at"`                         // of the approval
	From    uint64    `json:"from_sequence_id,omitempty"` // with join: the first message that it may read
}

// ChannelDecision is the body of the notice [ChannelDecided].
type ChannelDecision struct {
	Request  int64        `json:"request"`
	Channel  string       `json:"channel"`
	Agent    string       `json:"agent"`
	Change   Change       `json:"change"`
	Decision RequestState `json:"decision"`
	Why      string       `json:"why,omitempty"`              // to who asked
	From     uint64       `json:"from_sequence_id,omitempty"` // with an approved join
}
