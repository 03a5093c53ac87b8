package shelf

import (
	"context"
	"fmt"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
)

// Subscribe makes an agent's subscription to a topic, or finds it. When the agent
// has as many as it may have, those to topics that it may not read any more give
// way: it does not see them, and could not end them.
func (s *Shelf) Subscribe(ctx context.Context, agent string, mayRead func(topic string) bool, q protocol.Subscribe) (protocol.Subscribed, error) {
	out := protocol.Subscribed{}
	if err := checkSubscription(q.Topic, q.Subscription); err != nil {
		return out, err
	}
	err := s.store.Update(ctx, func(t *store.Tx) (err error) {
		there := false
		if out.Position, there, err = positionOf(t, agent, q.Topic, q.Subscription); err != nil || there {
			return err
		}
		n, err := t.Int("SELECT count(*) FROM subscription WHERE reader = ?", agent)
		if err == nil && n >= topic.MaxSubscriptions {
			n, err = endUnreadable(t, agent, n, mayRead)
		}
		if err != nil {
			return err
		}
		if n >= topic.MaxSubscriptions {
			return refuse(deny.ToolQuota, q.Topic, fmt.Sprintf("this agent has %d subscriptions to public topics", n), "end some of them with events_unsubscribe")
		}
		if !q.FromStart {
			if out.Position, err = lastOf(t, q.Topic); err != nil {
				return err
			}
		}
		_, err = t.Exec("INSERT INTO subscription (reader, topic, name, position) VALUES (?, ?, ?, ?)", agent, q.Topic, q.Subscription, out.Position)
		return err
	})
	return out, ours(q.Topic, err)
}

// endUnreadable ends an agent's subscriptions to topics that it may not read, and
// says how many of its n are left.
func endUnreadable(t *store.Tx, agent string, n int64, mayRead func(string) bool) (left int64, err error) {
	var lost []string
	err = t.Query("SELECT DISTINCT topic FROM subscription WHERE reader = ?", func(row []sqlite.Value) error {
		if name := sqlite.Text(row[0]); !mayRead(name) {
			lost = append(lost, name)
		}
		return nil
	}, agent)
	for _, name := range lost {
		if err != nil {
			break
		}
		var ended int64
		ended, err = t.Exec("DELETE FROM subscription WHERE reader = ? AND topic = ?", agent, name)
		n -= ended
	}
	return n, err
}

func checkSubscription(name, sub string) error {
	if len(sub) == 0 || len(sub) > topic.MaxSubscription {
		return refuse(deny.ToolInvalid, name, fmt.Sprintf("a subscription's name has 1 to %d bytes", topic.MaxSubscription), "name the subscription")
	}
	return nil
}

// Unsubscribe ends an agent's subscription.
func (s *Shelf) Unsubscribe(ctx context.Context, agent string, q protocol.Subscription) (protocol.Unsubscribed, error) {
	out := protocol.Unsubscribed{}
	err := s.store.Update(ctx, func(t *store.Tx) error {
		n, err := t.Exec("DELETE FROM subscription WHERE reader = ? AND topic = ? AND name = ?", agent, q.Topic, q.Subscription)
		out.Ended = n > 0
		return err
	})
	return out, ours(q.Topic, err)
}

func positionOf(t *store.Tx, agent, name, sub string) (position int64, there bool, err error) {
	err = t.Query("SELECT position FROM subscription WHERE reader = ? AND topic = ? AND name = ?", func(row []sqlite.Value) error {
		position, there = sqlite.Int(row[0]), true
		return nil
	}, agent, name, sub)
	return position, there, err
}

// lastOf is the number of a topic's newest message; 0 when it never had one.
func lastOf(t *store.Tx, name string) (last int64, err error) {
	err = t.Query("SELECT last FROM topic WHERE name = ?", func(row []sqlite.Value) error { last = sqlite.Int(row[0]); return nil }, name)
	return last, err
}

// Read gives messages. It moves the subscription on, on disk, before it returns.
func (s *Shelf) Read(ctx context.Context, agent string, q protocol.Read) (protocol.Messages, error) {
	out := protocol.Messages{Messages: []protocol.Message{}}
	if q.Limit < 1 || q.Limit > topic.MaxPolled {
		return out, refuse(deny.ToolInvalid, q.Topic, fmt.Sprintf("a limit is 1 to %d", topic.MaxPolled), "ask for fewer at a time")
	}
	if q.After != nil {
		if *q.After < 0 {
			return out, refuse(deny.ToolInvalid, q.Topic, "after is below 0", "say 0 for all that are kept")
		}
		err := s.store.View(ctx, func(t *store.Tx) (err error) {
			if q.Subscription != "" {
				if out.Position, _, err = positionOf(t, agent, q.Topic, q.Subscription); err != nil {
					return err
				}
			}
			_, err = give(t, q, *q.After, &out)
			return err
		})
		return out, ours(q.Topic, err)
	}
	if err := checkSubscription(q.Topic, q.Subscription); err != nil {
		return out, err
	}
	// Most polls find nothing: they need no transaction that writes.
	fresh := false
	err := s.store.View(ctx, func(t *store.Tx) error {
		position, err := subscribed(t, agent, q)
		if err != nil {
			return err
		}
		last, err := lastOf(t, q.Topic)
		out.Position, fresh = position, last > position
		return err
	})
	if err != nil || !fresh {
		return out, ours(q.Topic, err)
	}
	err = s.store.Update(ctx, func(t *store.Tx) error {
		out = protocol.Messages{Messages: out.Messages[:0]}
		position, err := subscribed(t, agent, q)
		if err != nil {
			return err
		}
		last, err := give(t, q, position, &out)
		if err != nil {
			return err
		}
		out.Position = last
		_, err = t.Exec("UPDATE subscription SET position = ? WHERE reader = ? AND topic = ? AND name = ?", last, agent, q.Topic, q.Subscription)
		return err
	})
	return out, ours(q.Topic, err)
}

func subscribed(t *store.Tx, agent string, q protocol.Read) (position int64, err error) {
	position, there, err := positionOf(t, agent, q.Topic, q.Subscription)
	if err == nil && !there {
		err = refuse(deny.ToolMissing, q.Topic, "there is no subscription "+q.Subscription+" of this agent to it", "call events_subscribe first")
	}
	return position, err
}

// give reads the messages after a number, as many as fit, and says up to which
// number it read.
func give(t *store.Tx, q protocol.Read, from int64, out *protocol.Messages) (last int64, err error) {
	upTo, size, n, more := int64(0), int64(0), 0, false
	err = t.Query("SELECT seq, size FROM event WHERE topic = ? AND seq > ? AND time > ? ORDER BY seq LIMIT ?", func(row []sqlite.Value) error {
		size += sqlite.Int(row[1])
		if n > 0 && size > maxGiven {
			more = true
			return nil
		}
		if !more {
			upTo = sqlite.Int(row[0])
			n++
		}
		return nil
	}, q.Topic, from, oldest(t), q.Limit)
	if err != nil {
		return 0, err
	}
	if n == 0 { // everything after it has gone already
		if last, err = lastOf(t, q.Topic); err != nil {
			return 0, err
		}
		last = max(last, from)
		out.Missed = last - from
		return last, nil
	}
	err = t.Query("SELECT seq, publisher, time, message FROM event WHERE topic = ? AND seq > ? AND seq <= ? AND time > ? ORDER BY seq", func(row []sqlite.Value) error {
		out.Messages = append(out.Messages, protocol.Message{Seq: sqlite.Int(row[0]), From: sqlite.Text(row[1]), Time: sqlite.Int(row[2]), Body: sqlite.Blob(row[3])})
		return nil
	}, q.Topic, from, upTo, oldest(t))
	out.Missed = upTo - from - int64(len(out.Messages))
	return upTo, err
}

// List says of topics what a reader of them sees.
func (s *Shelf) List(ctx context.Context, agent string, names []string) (map[string]protocol.Topic, error) {
	out := map[string]protocol.Topic{}
	err := s.store.View(ctx, func(t *store.Tx) error {
		for _, name := range names {
			last, err := lastOf(t, name)
			if err != nil {
				return err
			}
			one := protocol.Topic{Name: name, Last: last}
			if one.Messages, err = t.Int("SELECT coalesce(sum(messages), 0) FROM share WHERE topic = ?", name); err != nil {
				return err
			}
			err = t.Query("SELECT name, position FROM subscription WHERE reader = ? AND topic = ? ORDER BY name", func(row []sqlite.Value) error {
				one.Subscriptions = append(one.Subscriptions, protocol.Position{Subscription: sqlite.Text(row[0]), Position: sqlite.Int(row[1])})
				return nil
			}, agent, name)
			if err != nil {
				return err
			}
			out[name] = one
		}
		return nil
	})
	return out, ours("*", err)
}
