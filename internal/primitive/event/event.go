// Package event is an agent's topics: what is published to one is read by every
// subscription that there is to it, in order, by asking (events_poll) or as a
// stream ([Events.ServeStream]).
//
// Topics are the agent's own, in its own system.db: its processes, schedules and
// apps speak to one another here. Those that begin with topic.Prefix are public:
// the team's, kept by a server of the host, where the manifest lets the agent
// (public.go). What needs one recipient and an answer is a message
// (internal/gateway/messages).
//
// A topic keeps its last maxEvents events of the last keepFor; a subscription
// that is behind that misses some, and is told how many. Events count towards
// the agent's quota, and give back when they go.
//
// A poll moves its subscription on, durably, before it answers: an event is
// given at most once to each. Whoever needs to read again says after which event.
package event

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/client"
)

// Bounds.
const (
	maxEvents        = 1000
	keepFor          = 24 * time.Hour
	maxTopics        = 1000
	maxSubscriptions = 1000
	maxMessage       = 1 << 20 // bytes of JSON
	maxPolled        = 100
	maxGiven         = topic.MaxMessage + 256<<10 // bytes of messages that one poll gives; one at least
	maxWait          = 30                         // seconds
	eventCost        = 64
	sweepBatch       = 256
)

var namePattern = regexp.MustCompile(`[A-Za-z0-9_:.\-/]+`)

// Events is the topics of one agent.
type Events struct {
	store  *store.Store
	public *client.Client // nil: the team has no public topics

	mu    sync.Mutex
	fresh chan struct{} // closed with the next event
}

// Open makes the tables and has them swept. public may be nil; who opened it
// closes it.
func Open(ctx context.Context, s *store.Store, public *client.Client) (*Events, error) {
	e := &Events{store: s, public: public, fresh: make(chan struct{})}
	err := s.Migrate(ctx, "event", [][]string{{
		`CREATE TABLE topic (
			name TEXT PRIMARY KEY,
			last INTEGER NOT NULL -- number of its last event, from 1
		) STRICT, WITHOUT ROWID`,
		`CREATE TABLE event (
			topic   TEXT NOT NULL,
			seq     INTEGER NOT NULL,
			time    INTEGER NOT NULL, -- ms since 1970
			message BLOB NOT NULL,    -- JSON
			size    INTEGER NOT NULL, -- that counts towards the quota
			PRIMARY KEY (topic, seq)
		) STRICT, WITHOUT ROWID`,
		`CREATE INDEX event_time ON event (time)`,
		`CREATE TABLE subscription (
			topic    TEXT NOT NULL,
			name     TEXT NOT NULL,
			position INTEGER NOT NULL, -- number of the last event that it was given
			PRIMARY KEY (topic, name)
		) STRICT, WITHOUT ROWID`,
	}})
	if err != nil {
		return nil, err
	}
	s.Expire(expire)
	return e, nil
}

// Tools are the tools of the group.
func (e *Events) Tools() []tool.Tool {
	name := func(field, doc string) tool.Field {
		return tool.Field{
			Name: field, Type: tool.String, Min: 1, Max: 256, Shown: true, Doc: doc,
			Pattern: namePattern, PatternDoc: "a name has letters, digits and _ : . - / only",
		}
	}
	topics, sub := name("topic", "The topic; one like public/builds is the team's, where the manifest lets this agent"), name("subscription", "Which subscription to it; each one is given every event")
	topics.Required, sub.Default, sub.Aliases = true, "default", []string{"subscriptionId"}
	all := []tool.Tool{
		{
			Name: "events_publish", Effect: true, Run: e.publish, MaxInput: maxMessage + 64<<10, Summary: "Publish a message to a topic of this agent, or to a public one. A topic keeps its last 1000 messages for a day.",
			Fields: []tool.Field{topics, {Name: "message", Aliases: []string{"data", "payload"}, Type: tool.Any, Required: true, Max: maxMessage, Doc: "Any JSON value"}},
		},
		{
			Name: "events_subscribe", Effect: true, Run: e.subscribe, Summary: "Subscribe to a topic; events_poll then gives what is published. Subscribing again changes nothing.",
			Fields: []tool.Field{topics, sub, {Name: "from", Type: tool.String, Enum: []string{"now", "start"}, Default: "now", Shown: true, Doc: "Where a new subscription begins"}},
		},
		{
			Name: "events_poll", Effect: true, Run: e.poll, Summary: "Give the next messages of a subscription, and move it on. With after, read from there and move nothing.",
			Fields: []tool.Field{
				topics, sub,
				{Name: "limit", Type: tool.Integer, Min: 1, Max: maxPolled, Default: int64(10), Doc: "How many at most"},
				{Name: "wait", Type: tool.Integer, Min: 0, Max: maxWait, Default: int64(0), Doc: "Seconds to wait for the first"},
				{Name: "after", Type: tool.Integer, Min: 0, Max: 1 << 53, Doc: "Read after the message of this number instead"},
			},
		},
		{Name: "events_unsubscribe", Effect: true, Run: e.unsubscribe, Summary: "End a subscription.", Fields: []tool.Field{topics, sub}},
		{Name: "events_list_topics", Run: e.list, Summary: "List the topics of this agent and the public ones that it may use, with their subscriptions."},
	}
	for i := range all {
		all[i].Group = tool.Events
		if len(all[i].Fields) > 0 { // it has a topic, which may be the team's
			all[i].Scope = func(in tool.Input) (string, *deny.Reason) { return in.String("topic"), nil }
		}
	}
	return all
}

// Message is one event.
type Message struct {
	Seq   int64           `json:"seq"` // from 1 in its topic, gapless
	ID    string          `json:"messageId"`
	Topic string          `json:"topic"`
	From  string          `json:"from,omitempty"` // of a public topic: the agent that published it
	Time  string          `json:"publishedAt"`
	Body  json.RawMessage `json:"message"`
}

func messageID(topic string, seq int64) string { return topic + "#" + strconv.FormatInt(seq, 10) }

func (e *Events) publish(ctx context.Context, c *tool.Call) (any, error) {
	if name, ok := topic.Cut(c.In.String("topic")); ok {
		return e.publishPublic(ctx, c, name)
	}
	own, body, seq := c.In.String("topic"), c.In.Raw("message"), int64(0)
	err := e.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		last, err := known(t, own)
		if err != nil {
			return err
		}
		seq = last + 1
		if err := discharge(t, "DELETE FROM event WHERE topic = ? AND seq <= ? RETURNING size", own, seq-maxEvents); err != nil {
			return err
		}
		size := int64(len(own) + len(body) + eventCost)
		if err := t.Charge(size); err != nil {
			return err
		}
		if _, err := t.Exec("UPDATE topic SET last = ? WHERE name = ?", seq, own); err != nil {
			return err
		}
		t.After(e.wake)
		_, err = t.Exec("INSERT INTO event (topic, seq, time, message, size) VALUES (?, ?, ?, ?, ?)", own, seq, t.Now().UnixMilli(), []byte(body), size)
		return err
	})
	return map[string]any{"topic": own, "messageId": messageID(own, seq), "seq": seq}, err
}

// known gives the last number of a topic, which is made when it is not there.
// A topic counts towards the quota, too, and for good: its numbers go on.
func known(t *store.Tx, topic string) (last int64, err error) {
	there := false
	err = t.Query("SELECT last FROM topic WHERE name = ?", func(row []sqlite.Value) error {
		last, there = sqlite.Int(row[0]), true
		return nil
	}, topic)
	if err != nil || there {
		return last, err
	}
	n, err := t.Int("SELECT count(*) FROM topic")
	if err != nil {
		return 0, err
	}
	if n >= maxTopics {
		return 0, tool.Refuse(deny.ToolQuota, topic, "this agent has 1000 topics", "use one of those that there are: events_list_topics")
	}
	if err := t.Charge(int64(len(topic) + eventCost)); err != nil {
		return 0, err
	}
	_, err = t.Exec("INSERT INTO topic (name, last) VALUES (?, 0)", topic)
	return 0, err
}

func discharge(t *store.Tx, sql string, args ...any) error {
	size := int64(0)
	if err := t.Query(sql, func(row []sqlite.Value) error { size += sqlite.Int(row[0]); return nil }, args...); err != nil {
		return err
	}
	return t.Charge(-size)
}

// wake tells those that wait.
func (e *Events) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.fresh)
	e.fresh = make(chan struct{})
}

func (e *Events) next() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fresh
}

func (e *Events) subscribe(ctx context.Context, c *tool.Call) (any, error) {
	if name, ok := topic.Cut(c.In.String("topic")); ok {
		return e.subscribePublic(ctx, c, name)
	}
	own, sub, position := c.In.String("topic"), c.In.String("subscription"), int64(0)
	err := e.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		last, err := known(t, own)
		if err != nil {
			return err
		}
		there := false
		if position, there, err = positionOf(t, own, sub); err != nil || there {
			return err
		}
		n, err := t.Int("SELECT count(*) FROM subscription")
		if err != nil {
			return err
		}
		if n >= maxSubscriptions {
			return tool.Refuse(deny.ToolQuota, own, "this agent has 1000 subscriptions", "end some of them with events_unsubscribe")
		}
		if c.In.String("from") == "now" {
			position = last
		}
		_, err = t.Exec("INSERT INTO subscription (topic, name, position) VALUES (?, ?, ?)", own, sub, position)
		return err
	})
	return map[string]any{"topic": own, "subscription": sub, "subscriptionId": sub, "position": position}, err
}

func positionOf(t *store.Tx, topic, sub string) (position int64, there bool, err error) {
	err = t.Query("SELECT position FROM subscription WHERE topic = ? AND name = ?", func(row []sqlite.Value) error {
		position, there = sqlite.Int(row[0]), true
		return nil
	}, topic, sub)
	return position, there, err
}

func (e *Events) unsubscribe(ctx context.Context, c *tool.Call) (any, error) {
	if name, ok := topic.Cut(c.In.String("topic")); ok {
		return e.unsubscribePublic(ctx, c, name)
	}
	own, sub, ended := c.In.String("topic"), c.In.String("subscription"), false
	err := e.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		n, err := t.Exec("DELETE FROM subscription WHERE topic = ? AND name = ?", own, sub)
		ended = n > 0
		return err
	})
	return map[string]any{"topic": own, "subscription": sub, "unsubscribed": ended}, err
}

// Topic is one topic of a list.
type Topic struct {
	Topic         string         `json:"topic"`
	Last          int64          `json:"last"`     // number of the last event
	Messages      int64          `json:"messages"` // that are kept
	Subscriptions []Subscription `json:"subscriptions"`
}

// Subscription is one subscription of a list.
type Subscription struct {
	Name     string `json:"subscription"`
	Position int64  `json:"position"`
}

func (e *Events) list(ctx context.Context, _ *tool.Call) (any, error) {
	topics := []Topic{}
	err := e.store.View(ctx, func(t *store.Tx) error {
		at := map[string]int{}
		err := t.Query("SELECT name, last, (SELECT count(*) FROM event WHERE topic = name AND time > ?) FROM topic ORDER BY name", func(row []sqlite.Value) error {
			at[sqlite.Text(row[0])] = len(topics)
			topics = append(topics, Topic{sqlite.Text(row[0]), sqlite.Int(row[1]), sqlite.Int(row[2]), []Subscription{}})
			return nil
		}, oldest(t))
		if err != nil {
			return err
		}
		return t.Query("SELECT topic, name, position FROM subscription ORDER BY topic, name", func(row []sqlite.Value) error {
			one := &topics[at[sqlite.Text(row[0])]]
			one.Subscriptions = append(one.Subscriptions, Subscription{sqlite.Text(row[1]), sqlite.Int(row[2])})
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return e.withPublic(ctx, map[string]any{"topics": topics}), nil
}

// oldest is the time from which on events are still shown.
func oldest(t *store.Tx) int64 { return t.Now().Add(-keepFor).UnixMilli() }

// expire lets go of some events that are too old.
func expire(t *store.Tx) (more bool, err error) {
	n, size := 0, int64(0)
	err = t.Query("DELETE FROM event WHERE (topic, seq) IN (SELECT topic, seq FROM event WHERE time <= ? LIMIT ?) RETURNING size", func(row []sqlite.Value) error {
		n++
		size += sqlite.Int(row[0])
		return nil
	}, oldest(t), sweepBatch)
	if err != nil {
		return false, err
	}
	return n == sweepBatch, t.Charge(-size)
}
