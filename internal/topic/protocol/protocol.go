// Package protocol is what is said to the server of public topics: the protocol
// `topics` version 1 of gateways, and the verbs of root
// (docs/contracts/protocols.md).
//
// A connection opens as internal/hub says. From there on requests are
// pipelined: each carries an id that no other open request of the connection
// has, answers carry it back and come in any order. A request is answered by
// the verb of its row, by [VerbDenied] with a deny.Reason, or by "error" with a
// wire.Failure and then the end. [VerbNews] answers nothing and has no id.
//
// Nobody says in a request who he is: a request is of the agent whose socket it
// came in on.
package protocol

import (
	"encoding/json"

	"bulkhead/internal/topic"
)

// What gateways greet with.
const (
	Name    = "topics"
	Version = 1
)

// Verbs of gateways.
const (
	VerbPublish     = "publish"     // [Publish] -> VerbPublished [Published]
	VerbRead        = "read"        // [Read] -> VerbMessages [Messages]
	VerbSubscribe   = "subscribe"   // [Subscribe] -> VerbSubscribed [Subscribed]
	VerbUnsubscribe = "unsubscribe" // [Subscription] -> VerbUnsubscribed [Unsubscribed]
	VerbList        = "list"        // struct{} -> VerbTopics [Topics]
)

// Answers, and what comes unasked.
const (
	VerbPublished    = "published"
	VerbMessages     = "messages"
	VerbSubscribed   = "subscribed"
	VerbUnsubscribed = "unsubscribed"
	VerbTopics       = "topics"
	VerbDenied       = "denied"
	VerbNews         = "news" // [News]
)

// Verbs of root.
const (
	VerbPolicy = "policy" // [Policies] -> struct{}
	VerbForget = "forget" // [Forget] -> struct{}
)

// Config is what the server is told at its start. Nobody may do anything until
// root has said who may ([VerbPolicy]).
type Config struct {
	Data string `json:"data"` // the path of its folder, as it sees it
}

// Policies is who may do what, of all teams: what it leaves out nobody may.
type Policies struct {
	Teams map[string]topic.Policy `json:"teams"`
}

// Forget has everything of a team removed that has no topics any more.
type Forget struct {
	Team string `json:"team"`
}

// Publish adds a message to a topic. The same key again, while the first one is
// kept, adds nothing and gives the first one's answer.
type Publish struct {
	Topic   string          `json:"topic"`
	Key     string          `json:"key"`
	Message json.RawMessage `json:"message"`
}

// Published says that the message is on disk.
type Published struct {
	Seq int64 `json:"seq"`
}

// Read asks for the messages of a subscription that it was not given, and moves
// it on before they are given. With After it asks for those after a number, and
// moves nothing; then it needs no subscription.
type Read struct {
	Topic        string `json:"topic"`
	Subscription string `json:"subscription,omitempty"`
	After        *int64 `json:"after,omitempty"`
	Limit        int    `json:"limit"`
}

// Messages are in the order of their numbers. Those of one answer fit into a
// frame, so there may be fewer than asked for although there are more.
type Messages struct {
	Messages []Message `json:"messages"`
	Position int64     `json:"position"` // of the subscription now
	Missed   int64     `json:"missed"`   // numbers that were passed over: those messages had gone
}

// Message is one message.
type Message struct {
	Seq  int64           `json:"seq"`
	From string          `json:"from"` // the agent whose socket it came in on
	Time int64           `json:"time"` // ms since 1970
	Body json.RawMessage `json:"message"`
}

// Subscribe makes a subscription unless it is there.
type Subscribe struct {
	Topic        string `json:"topic"`
	Subscription string `json:"subscription"`
	FromStart    bool   `json:"fromStart,omitempty"`
}

// Subscribed says where it is.
type Subscribed struct {
	Position int64 `json:"position"`
}

// Subscription names one.
type Subscription struct {
	Topic        string `json:"topic"`
	Subscription string `json:"subscription"`
}

// Unsubscribed says whether it was there.
type Unsubscribed struct {
	Ended bool `json:"ended"`
}

// Topics are those with which the agent has to do.
type Topics struct {
	Topics []Topic `json:"topics"`
}

// Topic is one of them. Last, Messages and Subscriptions are for who may read.
type Topic struct {
	Name          string     `json:"name"`
	Publish       bool       `json:"publish"`
	Read          bool       `json:"read"`
	Last          int64      `json:"last,omitempty"`
	Messages      int64      `json:"messages,omitempty"`
	Subscriptions []Position `json:"subscriptions,omitempty"`
}

// Position is where a subscription is.
type Position struct {
	Subscription string `json:"subscription"`
	Position     int64  `json:"position"`
}

// News says in which topics that the agent may read something was published.
type News struct {
	Topics []string `json:"topics"`
}
