package store

import (
	"context"
	"database/sql/driver"
	"time"
)

// Bounds of one answer about what was missed.
const (
	missedScan = 10_000 // messages of the channel that are looked at
	missedMost = 1000   // messages in the answer, within maxPageBytes
	// lossDoubt is how much younger than the retention the last message of an agent
	// has to be, so that nothing after it can have been pruned.
	lossDoubt = time.Hour
)

// scanMissed are the messages of channel ?1 from sequence ?2 on, at most ?3, and
// whether each found no place in the queue of recipient ?4.
const scanMissed = `SELECT m.id, m.seq, EXISTS (SELECT 1 FROM dead AS d WHERE d.message = m.id AND d.recipient = ?4 AND d.attempts = 0 AND d.ended = 0)
	FROM message AS m WHERE m.id IN (` + fromPlace + `) ORDER BY m.id`

// Missed implements [Service].
//
// That a number is missing between two deliveries says nothing by itself: it may
// be the agent's own message, or of a time when it was no member. Only here it is
// known for whom a message was and what became of that.
func (a *Adapter) Missed(ctx context.Context, agent string, q MissedRequest) (Missed, error) {
	limit := 1
	if r := checkPage(agent, &limit, map[string]uint64{"after": q.After, "before": q.Before}); r != nil {
		return Missed{}, r
	}
	first, refused := a.policy.Load().readable(agent, q.Channel)
	if refused != nil {
		return Missed{}, refused
	}
	out := Missed{Messages: []Message{}}
	err := a.read(ctx, agent, func(c *conn) error { return a.missed(c, agent, q, first, &out) })
	return out, err
}

func (a *Adapter) missed(c *conn, agent string, q MissedRequest, first uint64, out *Missed) error {
	channel, err := c.integer("SELECT id FROM channel WHERE name = ?", q.Channel)
	if err != nil {
		return err
	}
	if out.Last, err = lastOf(c, channel); err != nil {
		return err
	}
	if q.After > 0 {
		if out.Anew = q.After > out.Last; !out.Anew {
			err = c.query("SELECT time FROM message WHERE "+atPlace, func(row []driver.Value) error {
				out.Anew = !q.Time.IsZero() && integer(row[0]) != q.Time.UnixNano()
				return nil
			}, channel, number(q.After))
		}
		if err != nil || out.Anew {
			return err
		}
	}
	recipient, err := c.integer("SELECT id FROM agent WHERE name = ?", agent)
	if err != nil {
		return err
	}
	// What the agent may not read it did not miss.
	from, end := max(q.After+1, first), out.Last
	if q.Before > 0 {
		end = min(end, q.Before-1)
	}
	// Nothing after a message of less than the retention ago was pruned: what is not there is lost.
	kept := q.After > 0 && !q.Time.IsZero() && q.Time.After(a.clock().Add(lossDoubt-a.keep))
	var ids []int64
	next, rows := from, 0
	if err := c.query(scanMissed, func(row []driver.Value) error {
		seq := sequence(row[1])
		if seq > end {
			return nil
		}
		rows++
		if kept && seq > next {
			out.Lost = append(out.Lost, Range{From: next, To: seq - 1})
		}
		next = seq + 1
		if integer(row[2]) == 1 {
			ids = append(ids, integer(row[0]))
		}
		return nil
	}, channel, number(from), missedScan, recipient); err != nil {
		return err
	}
	switch {
	case rows == missedScan && next <= end:
		out.Next = next
	case kept && next <= end:
		out.Lost = append(out.Lost, Range{From: next, To: end})
	}
	bytes := 0
	for i, id := range ids {
		if err := c.query(selectMessage+"WHERE m.id = ?", func(row []driver.Value) error {
			_, m := scanMessage(row)
			if bytes += len(m.Body); i >= missedMost || bytes > maxPageBytes && i > 0 {
				out.Next = m.Sequence
				return nil
			}
			out.Messages = append(out.Messages, m)
			return nil
		}, id); err != nil {
			return err
		}
		if len(out.Messages) <= i {
			break
		}
	}
	return nil
}

// lastOf is the last sequence that a channel gave: its row may be behind its newest message.
func lastOf(c *conn, channel int64) (last uint64, err error) {
	err = c.query(`SELECT max(last, coalesce((SELECT max(seq) FROM message INDEXED BY message_seq WHERE id >> 12 = (
		SELECT +piece FROM place WHERE channel = ?1 ORDER BY first DESC LIMIT 1) AND channel = ?1), 0)) FROM channel WHERE id = ?1`,
		func(row []driver.Value) error { last = sequence(row[0]); return nil }, channel)
	return last, err
}
