package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
)

// DeadLetters implements [Operator].
func (a *Adapter) DeadLetters(ctx context.Context, recipient string, after int64, limit int) ([]DeadLetter, error) {
	if r := checkPage("an operator", &limit, nil); r != nil {
		return nil, r
	}
	out := []DeadLetter{}
	bytes, more := 0, true
	err := a.read(ctx, "", func(c *conn) error {
		return c.query(`SELECT m.id, channel.name, m.seq, m.time, agent.name, m.key, m.type, m.priority, m.reply, m.body,
				d.id, r.name, d.reason, d.at, d.attempts
			FROM dead AS d JOIN agent AS r ON r.id = d.recipient JOIN message AS m ON m.id = d.message
				JOIN channel ON channel.id = m.channel JOIN agent ON agent.id = m.sender
			WHERE d.ended = 0 AND d.id > ?1 AND (?2 = '' OR r.name = ?2) ORDER BY d.id LIMIT ?3`, func(row []driver.Value) error {
			_, m := scanMessage(row)
			bytes += len(m.Body)
			if more = more && (len(out) == 0 || bytes <= maxPageBytes); more {
				out = append(out, DeadLetter{
					ID: integer(row[10]), Recipient: text(row[11]), Reason: text(row[12]), At: time.UnixMilli(integer(row[13])).UTC(),
					Attempts: int(integer(row[14])), Message: m,
				})
			}
			return nil
		}, after, recipient, limit)
	})
	return out, err
}

// ReplayDead implements [Operator]. A dead letter goes back to its place in
// its channel, with all tries before it. It stops with a reason when a queue
// is full; what was queued until then stays queued.
func (a *Adapter) ReplayDead(ctx context.Context, recipient string, ids []int64) (int, error) {
	return a.eachDead(ctx, recipient, ids, func(t *txn, id int64, e *entry) error {
		q := e.queue
		if _, ok := t.policy.Agents[q.name]; !ok {
			return allowed.Not(fmt.Sprintf("replay of dead letter %d to %s", id, q.name), q.name+" is in the manifest no more",
				"drop it (bulkhead dlq drop), or put the agent back into the manifest first")
		}
		if len(q.entries) >= QueueSize {
			return &deny.Reason{
				Layer: deny.LayerMessages, Code: deny.MessageQueueFull, What: fmt.Sprintf("replay of dead letter %d to %s", id, q.name),
				Why: fmt.Sprintf("its queue holds %d messages", len(q.entries)), Mend: "wait until it has acknowledged some", RetryAfter: retryFull,
			}
		}
		t.exec("UPDATE dead SET ended = ?, how = 'replayed', told = 1 WHERE id = ?", t.ms(), id)
		q.add(e)
		e.refs++
		t.touch(e)
		q.dead--
		t.bury(e.sender, q.recipient, -e.weight())
		t.charge(e.sender, e.weight())
		t.log.Info("dead letter replayed", "dead_letter", id, "recipient", q.name)
		return nil
	})
}

// DropDead implements [Operator]. The row stays, marked, as long as the message does.
func (a *Adapter) DropDead(ctx context.Context, recipient string, ids []int64) (int, error) {
	return a.eachDead(ctx, recipient, ids, func(t *txn, id int64, e *entry) error {
		t.exec("UPDATE dead SET ended = ?, how = 'dropped' WHERE id = ?", t.ms(), id)
		e.queue.dead--
		t.bury(e.sender, e.queue.recipient, -e.weight())
		t.log.Info("dead letter dropped", "dead_letter", id, "recipient", e.queue.name)
		return nil
	})
}

// eachDead hands present dead letters to f: those of ids, or all of a recipient.
func (a *Adapter) eachDead(ctx context.Context, recipient string, ids []int64, f func(t *txn, id int64, e *entry) error) (int, error) {
	if len(ids) == 0 && recipient == "" {
		return 0, invalid("dead letters", []deny.Field{{Name: "ids", Why: "ids or a recipient are needed"}})
	}
	if len(ids) == 0 {
		if err := a.read(ctx, "", func(c *conn) error {
			return c.query("SELECT d.id FROM dead AS d JOIN agent ON agent.id = d.recipient WHERE d.ended = 0 AND agent.name = ? ORDER BY d.id",
				func(row []driver.Value) error { ids = append(ids, integer(row[0])); return nil }, recipient)
		}); err != nil {
			return 0, err
		}
	}
	done := 0
	for len(ids) > 0 {
		n := min(len(ids), MaxBatch)
		part := ids[:n]
		ids = ids[n:]
		took, refusal := 0, error(nil)
		if err := a.do(ctx, &op{cost: n, run: func(t *txn) {
			for _, id := range part {
				e := t.deadEntry(id, recipient)
				if e == nil {
					continue
				}
				if refusal = f(t, id, e); refusal != nil {
					return
				}
				took++
			}
		}}); err != nil {
			return done, err
		}
		if done += took; refusal != nil {
			return done, refusal
		}
	}
	return done, nil
}

// deadEntry makes the delivery of a present dead letter; nil: there is none,
// or it is of another recipient.
func (t *txn) deadEntry(id int64, recipient string) (e *entry) {
	t.flush() // dead letters of this transaction can be asked for as well
	t.fail(t.db.query(`SELECT m.id, channel.name, m.seq, m.time, m.sender, m.key, m.type, m.priority, m.reply, m.root, length(m.body), d.recipient
		FROM dead AS d JOIN message AS m ON m.id = d.message JOIN channel ON channel.id = m.channel WHERE d.id = ? AND d.ended = 0`,
		func(row []driver.Value) error {
			if name := t.names[integer(row[11])]; recipient != "" && name != recipient {
				return nil
			}
			r := &record{
				id: integer(row[0]), channel: t.channels[text(row[1])], seq: sequence(row[2]), time: integer(row[3]), sender: integer(row[4]),
				typ: Type(text(row[6])), rank: integer(row[7]), reply: sequence(row[8]), root: sequence(row[9]), size: integer(row[10]),
			}
			copy(r.key[:], blob(row[5]))
			r.critical = allowed.Critical(r.typ)
			e = &entry{record: r, queue: t.queueOf(integer(row[11])), heap: -1}
			return nil
		}, id))
	return e
}
