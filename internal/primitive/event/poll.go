package event

import (
	"context"
	"errors"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/topic"
)

// Polled is what a poll gives.
type Polled struct {
	Topic    string    `json:"topic"`
	Messages []Message `json:"messages"`
	Position int64     `json:"position"` // of the subscription now
	Missed   int64     `json:"missed"`   // events that had gone before they were asked for
}

func (e *Events) poll(ctx context.Context, c *tool.Call) (any, error) {
	q := query{topic: c.In.String("topic"), sub: c.In.String("subscription"), limit: c.In.Int("limit"), after: -1}
	if c.In.Has("after") {
		q.after = c.In.Int("after")
	}
	wait, cancel := context.WithTimeout(ctx, time.Duration(c.In.Int("wait"))*time.Second)
	defer cancel()
	from := e.source(q, c.Take)
	for {
		fresh := from.fresh()
		out, err := from.read(ctx)
		if err != nil || len(out.Messages) > 0 || c.In.Int("wait") == 0 {
			return out, err
		}
		select {
		case <-fresh:
		case <-wait.Done():
			return out, nil
		}
	}
}

// source is where a poll or a stream reads: the agent's own topic, or a public
// one.
type source struct {
	fresh func() <-chan struct{} // closed when there may be more than now
	read  func(context.Context) (Polled, error)
}

// source gives that of a query. take is the record of a call that its own
// transaction writes; nil: another one is.
func (e *Events) source(q query, take func() record.Record) source {
	if name, ok := topic.Cut(q.topic); ok {
		return e.publicSource(q, name)
	}
	return source{fresh: e.next, read: func(ctx context.Context) (Polled, error) { return e.read(ctx, q, take) }}
}

type query struct {
	topic, sub   string
	limit, after int64 // after -1: where the subscription is
}

// errEnough ends a reading.
var errEnough = errors.New("event: enough was read")

// read gives the next events, and moves the subscription on in the same
// transaction, with the record of the call when it gives any.
func (e *Events) read(ctx context.Context, q query, take func() record.Record) (Polled, error) {
	out := Polled{Topic: q.topic, Messages: []Message{}}
	err := e.store.Update(context.WithoutCancel(ctx), func(t *store.Tx) error {
		out.Messages, out.Missed = out.Messages[:0], 0
		position, there, err := positionOf(t, q.topic, q.sub)
		if err != nil {
			return err
		}
		from := q.after
		if from < 0 {
			if !there {
				return tool.Refuse(deny.ToolMissing, q.topic, "there is no subscription "+q.sub+" to this topic", "call events_subscribe first")
			}
			from = position
		}
		first, size := int64(0), 0
		err = t.Query("SELECT seq, time, message FROM event WHERE topic = ? AND seq > ? AND time > ? ORDER BY seq LIMIT ?", func(row []sqlite.Value) error {
			seq, body := sqlite.Int(row[0]), sqlite.Blob(row[2])
			if size += len(body); first > 0 && size > maxGiven {
				return errEnough
			}
			if first == 0 {
				first = seq
			}
			out.Messages = append(out.Messages, Message{
				Seq: seq, ID: messageID(q.topic, seq), Topic: q.topic, Time: time.UnixMilli(sqlite.Int(row[1])).UTC().Format(time.RFC3339Nano), Body: body,
			})
			return nil
		}, q.topic, from, oldest(t), q.limit)
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
		var last int64
		switch {
		case first > 0:
			out.Missed, last = first-from-1, out.Messages[len(out.Messages)-1].Seq
		default:
			// Everything after it has gone already.
			if last, err = t.Int("SELECT last FROM topic WHERE name = ?", q.topic); err != nil {
				return err
			}
			last = max(last, from)
			out.Missed = last - from
		}
		out.Position = position
		if q.after < 0 && last != position {
			out.Position = last
			if _, err := t.Exec("UPDATE subscription SET position = ? WHERE topic = ? AND name = ?", last, q.topic, q.sub); err != nil {
				return err
			}
		}
		if take != nil && len(out.Messages) > 0 { // a poll that waits on is not over
			t.Record(take())
		}
		return nil
	})
	return out, err
}
