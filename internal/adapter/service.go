package adapter

import (
	"context"
	"time"
)

// Service is what agents may ask. The agent's name in every call comes from
// the connection. A refusal is a *deny.Reason; what failed is another error.
type Service interface {
	// Send takes drafts, each on its own: one that is refused or a duplicate
	// fails no other. A result without an error is on disk. It returns as many
	// results as drafts.
	Send(ctx context.Context, from string, drafts []Draft) []SendResult
	// Receive leases up to q.Max messages, and waits up to q.Wait for the first.
	Receive(ctx context.Context, agent string, q ReceiveRequest) ([]Delivery, error)
	// Ack ends deliveries for good; its answer is on disk. Refuse gives them
	// back for a later try, Extend keeps them for longer. Each lease is
	// answered on its own; one that is over is a *deny.Reason.
	Ack(ctx context.Context, agent string, leases []string) []error
	Refuse(ctx context.Context, agent string, q []Refusal) []error
	Extend(ctx context.Context, agent string, leases []string, d time.Duration) []error
	// Thread reads a message of a channel and all that answers it, in order.
	Thread(ctx context.Context, agent string, q ThreadRequest) (Page, error)
	// Replay reads a channel from a sequence on, without renumbering and
	// without touching any delivery.
	Replay(ctx context.Context, agent string, q ReplayRequest) (Page, error)
	// Channels lists what the agent may read or write, with the last sequence.
	Channels(ctx context.Context, agent string) ([]ChannelState, error)
	// Missed reads what of a channel the agent was never handed, without touching
	// any delivery.
	Missed(ctx context.Context, agent string, q MissedRequest) (Missed, error)
	// RequestMembership asks an operator for another membership. The answer is on
	// disk; the same request while one waits gets that one again.
	RequestMembership(ctx context.Context, agent string, q ChannelRequest) (MembershipRequest, error)
}

// SendResult is the answer to one draft.
type SendResult struct {
	Channel   string    `json:"channel,omitempty"`
	Sequence  uint64    `json:"channel_sequence_id,omitempty"`
	Time      time.Time `json:"timestamp,omitzero"`
	Duplicate bool      `json:"duplicate,omitempty"` // this key was taken before: the first answer again
	Err       error     `json:"-"`
}

// ReceiveRequest asks for messages. Zero values mean the defaults.
type ReceiveRequest struct {
	Max     int           `json:"max,omitempty"`     // 1..100; 10
	Wait    time.Duration `json:"wait,omitempty"`    // ns, at most 60 s; 0: answer at once
	Lease   time.Duration `json:"lease,omitempty"`   // ns, 1 s..1 h; 30 s
	Channel string        `json:"channel,omitempty"` // only from this one
}

// Refusal gives a delivery back.
type Refusal struct {
	Lease  string        `json:"lease"`
	Delay  time.Duration `json:"delay,omitempty"`  // ns; 0: the exponential backoff
	Reason string        `json:"reason,omitempty"` // in words, for the dead letter and the operator
	// Untaken: nobody was there to be handed it. It is ready again, and no try is used up.
	Untaken bool `json:"-"`
}

// ThreadRequest names any message of a thread.
type ThreadRequest struct {
	Channel  string `json:"channel"`
	Sequence uint64 `json:"channel_sequence_id"`
	Limit    int    `json:"limit,omitempty"` // 1..1000; 100
	After    uint64 `json:"after,omitempty"` // the last sequence of the page before
}

// ReplayRequest reads a channel.
type ReplayRequest struct {
	Channel string `json:"channel"`
	From    uint64 `json:"from_sequence_id"`
	Limit   int    `json:"limit,omitempty"` // 1..1000; 100
}

// Page is a part of a channel. Next is where the next one begins; 0: this was
// the last.
type Page struct {
	Messages []Message `json:"messages"`
	Next     uint64    `json:"next,omitempty"`
}

// ChannelState is one channel as one agent sees it.
type ChannelState struct {
	Channel string   `json:"channel"`
	Members []string `json:"members"`
	Last    uint64   `json:"last_sequence_id"`
	From    uint64   `json:"from_sequence_id,omitempty"` // the first that this agent may read, when it is not 1
	Queued  int      `json:"queued"`                     // of this agent, from this channel
}

// Operator is what only operators may ask, through the warden.
type Operator interface {
	// SetPolicy replaces the policy. What is queued stays.
	SetPolicy(ctx context.Context, p Policy) error
	Queues(ctx context.Context) ([]QueueState, error)
	// Tail reads messages of the whole team after a position; the first call
	// has position 0 for "from the beginning" or -1 for "only new ones".
	Tail(ctx context.Context, position int64, limit int, wait time.Duration) (Tail, error)
	Thread(ctx context.Context, agent string, q ThreadRequest) (Page, error) // agent "": any
	DeadLetters(ctx context.Context, recipient string, after int64, limit int) ([]DeadLetter, error)
	// ReplayDead queues dead letters anew, DropDead forgets them; both return
	// how many. No ids and a recipient: all of that recipient.
	ReplayDead(ctx context.Context, recipient string, ids []int64) (int, error)
	DropDead(ctx context.Context, recipient string, ids []int64) (int, error)
	// OperatorSend sends as the operator ("operator"), with every right.
	OperatorSend(ctx context.Context, d Draft) SendResult
	Backup(ctx context.Context, path string) error
	// Requests lists requests for another membership, those that wait or, with
	// all, the last that are over as well; the oldest first.
	Requests(ctx context.Context, all bool) ([]MembershipRequest, error)
	// Decide approves or refuses one that waits. The same decision again changes nothing.
	Decide(ctx context.Context, id int64, approve bool, why string) (MembershipRequest, error)
	// Members lists the channels of the manifest with who is in them.
	Members(ctx context.Context) ([]ChannelMembers, error)
}

// OperatorName is the sender of what an operator sends. No agent may have it.
const OperatorName = "operator"

// AlertName is the sender of the adapter's own alerts. No agent may have it.
const AlertName = "adapter"

// QueueState is one recipient's queue.
type QueueState struct {
	Agent   string         `json:"agent"`
	Queued  int            `json:"queued"`
	Leased  int            `json:"leased"`
	Retry   int            `json:"retrying"`
	Dead    int            `json:"dead_letters"`
	Oldest  time.Duration  `json:"oldest_ns"`
	Bytes   int64          `json:"bytes"`
	Senders map[string]int `json:"senders"`
}

// Tail is a part of everything that was sent.
type Tail struct {
	Messages []Message `json:"messages"`
	Position int64     `json:"position"`
}
