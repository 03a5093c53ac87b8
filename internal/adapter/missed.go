package adapter

import "time"

// MissedRequest asks what of a channel an agent was never handed. After is the
// last message that it acknowledged there, and Time that message's; 0: none yet.
type MissedRequest struct {
	Channel string    `json:"channel"`
	After   uint64    `json:"after,omitempty"`
	Time    time.Time `json:"time,omitzero"`
	Before  uint64    `json:"before,omitempty"` // 0: to the channel's end
	From    uint64    `json:"from,omitempty"`   // Next of an answer: to go on there
	// Lost asks for what is lost instead of messages.
	Lost bool `json:"lost,omitempty"`
}

// Missed is the answer. What was sent by the agent itself, while it was no member,
// what it was handed (acknowledged, leased or given up after tries) and what
// waits for it is no part of it: that is no gap.
type Missed struct {
	// Messages found no place in the agent's queue, in order: the adapter has
	// them, as dead letters without a try.
	Messages []Message `json:"messages"`
	// Lost were given numbers, and the adapter does not have them any more. Looked
	// for only when that is asked.
	Lost []Range `json:"lost,omitempty"`
	Last uint64  `json:"last_sequence_id"` // of the channel
	// Anew says that After is of another history of the channel: the adapter's
	// store was put back to an earlier state, and numbers are given again.
	Anew bool `json:"anew,omitempty"`
	// Next is where the rest begins, when this is not all; 0: it is.
	Next uint64 `json:"next,omitempty"`
}

// Range is a part of a channel, both ends included.
type Range struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}
