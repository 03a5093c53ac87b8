package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"
)

// Bounds of one answer about what was missed.
const (
	missedScan = 10_000 // numbers of the channel that are looked through for lost ones
	missedMost = 1000   // messages in the answer, within maxPageBytes
	// lossDoubt is how much younger than the retention the last message of an agent
	// has to be, so that nothing after it can have been pruned.
	lossDoubt = time.Hour
)

// selectMissed are the ids of messages of channel ?1 that found no place in the
// queue of recipient ?2, from id ?3 on, at most ?4.
const selectMissed = `SELECT DISTINCT message FROM dead INDEXED BY dead_missed
	WHERE recipient = ?2 AND channel = ?1 AND message >= ?3 AND ended = 0 AND evicted = 1 ORDER BY message LIMIT ?4`

// Missed implements [Service].
//
// That a number is missing between two deliveries says nothing by itself: it may
// be the agent's own message, or of a time when it was no member. Only here it is
// known for whom a message was and what became of that.
func (a *Adapter) Missed(ctx context.Context, agent string, q MissedRequest) (Missed, error) {
	limit := 1
	if r := checkPage(agent, &limit, map[string]uint64{"after": q.After, "before": q.Before, "from": q.From}); r != nil {
		return Missed{}, r
	}
	first, refused := a.policy.Load().readable(agent, q.Channel)
	if refused != nil {
		return Missed{}, refused
	}
	out := Missed{Messages: []Message{}}
	err := a.read(ctx, agent, func(c *conn) error { return a.missed(ctx, c, agent, q, first, &out) })
	return out, err
}

func (a *Adapter) missed(ctx context.Context, c *conn, agent string, q MissedRequest, first uint64, out *Missed) error {
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
	// What the agent may not read it did not miss.
	from, end := max(q.After+1, q.From, first), out.Last
	if q.Before > 0 {
		end = min(end, q.Before-1)
	}
	if from > end {
		return nil
	}
	if !q.Lost {
		return withoutPlace(ctx, c, channel, agent, from, end, out)
	}
	// Nothing after a message of less than the retention ago was pruned: what is not there is lost.
	if q.After == 0 || q.Time.IsZero() || !q.Time.After(a.clock().Add(lossDoubt-a.keep)) {
		return nil
	}
	return lost(ctx, c, channel, from, end, out)
}

// withoutPlace reads the messages from one sequence to another that found no
// place in an agent's queue. What it costs does not grow with what lies between.
func withoutPlace(ctx context.Context, c *conn, channel int64, agent string, from, end uint64, out *Missed) error {
	recipient, err := c.integer("SELECT id FROM agent WHERE name = ?", agent)
	if err != nil {
		return err
	}
	begin, err := c.integer(fromPlace, channel, number(from), 1)
	if err != nil || begin == 0 {
		return err
	}
	var ids []int64
	if err := c.query(selectMissed, func(row []driver.Value) error {
		ids = append(ids, integer(row[0]))
		return ctx.Err()
	}, channel, recipient, begin, missedMost+1); err != nil {
		return err
	}
	bytes, over := 0, false
	for i, id := range ids {
		if err := errors.Join(ctx.Err(), c.query(selectMessage+"WHERE m.id = ?", func(row []driver.Value) error {
			_, m := scanMessage(row)
			if over = m.Sequence > end; over {
				return nil
			}
			if bytes += len(m.Body); i >= missedMost || bytes > maxPageBytes && i > 0 {
				out.Next, over = m.Sequence, true
				return nil
			}
			out.Messages = append(out.Messages, m)
			return nil
		}, id)); err != nil || over {
			return err
		}
	}
	return nil
}

// lost finds the numbers from one sequence to another that no message has.
func lost(ctx context.Context, c *conn, channel int64, from, end uint64, out *Missed) error {
	next, rows := from, 0
	if err := c.query(seqFromPlace, func(row []driver.Value) error {
		seq := sequence(row[0])
		if rows++; seq > next && next <= end {
			out.Lost = append(out.Lost, Range{From: next, To: min(seq-1, end)})
		}
		next = seq + 1
		return ctx.Err()
	}, channel, number(from), missedScan); err != nil {
		return err
	}
	switch {
	case next > end:
	case rows == missedScan:
		out.Next = next
	default:
		out.Lost = append(out.Lost, Range{From: next, To: end})
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
