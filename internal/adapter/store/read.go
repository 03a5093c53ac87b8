package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"bulkhead/internal/deny"
)

// Bounds of a page.
const (
	usualPage    = 100
	maxPage      = 1000
	maxPageBytes = 8 << 20 // the first message always fits
)

const selectMessage = `SELECT m.id, channel.name, m.seq, m.time, agent.name, m.key, m.type, m.priority, m.reply, m.body
	FROM message AS m JOIN channel ON channel.id = m.channel JOIN agent ON agent.id = m.sender `

// The + before a piece takes its affinity away, without which SQLite would not
// use an index of an expression, and read the whole table.

// atPlace is the condition for one message, of channel ?1 and sequence ?2.
const atPlace = `id >> 12 = (SELECT +piece FROM place WHERE channel = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1) AND channel = ?1 AND seq = ?2`

// fromPlace are the ids of channel ?1 from sequence ?2 on, at most ?3. In a
// channel, ids and sequences have the same order.
const fromPlace = "SELECT m.id " + ofPlace

// seqFromPlace are their sequences.
const seqFromPlace = "SELECT m.seq " + ofPlace

const ofPlace = `FROM place AS p CROSS JOIN message AS m INDEXED BY message_seq ON m.id >> 12 = +p.piece AND m.channel = p.channel AND m.seq >= ?2
	WHERE p.channel = ?1 AND p.first >= coalesce((SELECT max(first) FROM place WHERE channel = ?1 AND first <= ?2), 0) ORDER BY p.first, m.seq LIMIT ?3`

func scanMessage(row []driver.Value) (id int64, m Message) {
	var k key
	copy(k[:], blob(row[5]))
	m = Message{
		IdempotencyKey: k.String(), Channel: text(row[1]), Sequence: sequence(row[2]), Time: time.Unix(0, integer(row[3])).UTC(), From: text(row[4]),
		Type: Type(text(row[6])), Priority: priority(integer(row[7])), ReplyTo: sequence(row[8]), Body: blob(row[9]),
	}
	m.To = other(m.Channel, m.From)
	return integer(row[0]), m
}

func checkPage(who string, limit *int, seqs map[string]uint64) *deny.Reason {
	var bad []deny.Field
	if *limit == 0 {
		*limit = usualPage
	}
	if *limit < 1 || *limit > maxPage {
		bad = append(bad, deny.Field{Name: "limit", Why: fmt.Sprintf("must be 1 to %d", maxPage)})
	}
	for name, n := range seqs {
		if n > 1<<62 {
			bad = append(bad, deny.Field{Name: name, Why: "no such message"})
		}
	}
	if bad != nil {
		return invalid("a read by "+who, bad)
	}
	return nil
}

// page collects rows until limit or maxPageBytes are reached.
type page struct {
	Page
	limit, bytes int
}

func (p *page) row(row []driver.Value) error {
	_, m := scanMessage(row)
	if p.Next != 0 {
		return nil
	}
	if len(p.Messages) == p.limit || len(p.Messages) > 0 && p.bytes+len(m.Body) > maxPageBytes {
		p.Next = m.Sequence
		return nil
	}
	p.bytes += len(m.Body)
	p.Messages = append(p.Messages, m)
	return nil
}

// Replay implements [Service].
func (a *Adapter) Replay(ctx context.Context, agent string, q ReplayRequest) (Page, error) {
	if r := checkPage(agent, &q.Limit, map[string]uint64{"from_sequence_id": q.From}); r != nil {
		return Page{}, r
	}
	first, r := a.policy.Load().readable(agent, q.Channel)
	if r != nil {
		return Page{}, r
	}
	q.From = max(q.From, first)
	p := page{limit: q.Limit, Page: Page{Messages: []Message{}}}
	err := a.read(ctx, agent, func(c *conn) error {
		id, err := c.integer("SELECT id FROM channel WHERE name = ?", q.Channel)
		if err != nil {
			return err
		}
		return c.query(selectMessage+"WHERE m.id IN ("+fromPlace+") ORDER BY m.id", p.row, id, number(q.From), q.Limit+1)
	})
	return p.Page, err
}

// Thread implements [Service] and [Operator]; agent "" is an operator.
func (a *Adapter) Thread(ctx context.Context, agent string, q ThreadRequest) (Page, error) {
	if r := checkPage(agent, &q.Limit, map[string]uint64{"channel_sequence_id": q.Sequence, "after": q.After}); r != nil {
		return Page{}, r
	}
	if agent != "" {
		first, r := a.policy.Load().readable(agent, q.Channel)
		if r == nil && q.Sequence < first {
			r = tooEarly(agent, q.Channel, q.Sequence, first)
		}
		if r != nil {
			return Page{}, r
		}
		if first > 0 {
			q.After = max(q.After, first-1)
		}
	}
	p := page{limit: q.Limit, Page: Page{Messages: []Message{}}}
	err := a.read(ctx, agent, func(c *conn) error {
		id, err := c.integer("SELECT id FROM channel WHERE name = ?", q.Channel)
		if err != nil {
			return err
		}
		root := int64(-1)
		if err := c.query("SELECT root FROM message WHERE "+atPlace, func(row []driver.Value) error {
			root = integer(row[0])
			return nil
		}, id, number(q.Sequence)); err != nil {
			return err
		}
		switch root {
		case -1:
			return invalid("a thread of "+q.Channel, []deny.Field{{Name: "channel_sequence_id", Why: fmt.Sprintf("%s has no message %d, or it was too old to be kept", q.Channel, q.Sequence)}})
		case 0:
			root = number(q.Sequence)
		}
		return c.query(selectMessage+`WHERE m.id IN (SELECT id FROM message WHERE `+atPlace+`
			UNION ALL SELECT id FROM message WHERE channel = ?1 AND root = ?2 AND root > 0) AND m.seq > ?3 ORDER BY m.id LIMIT ?4`,
			p.row, id, root, number(q.After), q.Limit+1)
	})
	return p.Page, err
}

// bodies reads those bodies that are not kept in memory.
func (a *Adapter) bodies(ctx context.Context, ds []Delivery) error {
	for i := range ds {
		if ds[i].Body != nil {
			continue
		}
		id, _, _ := parseLease(ds[i].Lease)
		if err := a.read(ctx, "", func(c *conn) error {
			return c.query("SELECT body FROM message WHERE id = ?", func(row []driver.Value) error { ds[i].Body = blob(row[0]); return nil }, id)
		}); err != nil {
			return err
		}
	}
	return nil
}

// Channels implements [Service].
func (a *Adapter) Channels(ctx context.Context, agent string) ([]ChannelState, error) {
	var out []ChannelState
	err := a.do(ctx, &op{agent: agent, cost: 1, run: func(t *txn) { out = t.states(agent) }})
	if err != nil {
		return nil, err
	}
	return out, nil
}
