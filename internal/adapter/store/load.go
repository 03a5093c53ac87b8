package store

import (
	"database/sql/driver"
	"fmt"
	"log/slog"
	"time"

	"bulkhead/internal/adapter/allowed"
)

// load reads from the database what the writer keeps in memory. wall and mono
// are now, on both clocks.
func load(db *conn, log *slog.Logger, p Policy, wall time.Time, mono time.Duration) (*core, error) {
	c := newCore(db, log, p)
	steps := []func() error{
		c.loadNames,
		func() error { return c.loadQueues(wall, mono) },
		c.loadDead,
		c.loadMembership,
	}
	for _, f := range steps {
		if err := f(); err != nil {
			return nil, fmt.Errorf("read the message store: %w", err)
		}
	}
	return c, nil
}

// newestOf is the newest message of a channel in a piece.
const newestOf = "SELECT seq, time FROM message INDEXED BY message_seq WHERE id >> 12 = ? AND channel = ? ORDER BY seq DESC LIMIT 1"

func (c *core) loadNames() error {
	if err := c.db.query("SELECT id, name FROM agent", func(row []driver.Value) error {
		id, name := integer(row[0]), text(row[1])
		c.agents[name], c.names[id] = id, name
		c.lastID.agent = max(c.lastID.agent, id)
		return nil
	}); err != nil {
		return err
	}
	err := c.db.query(`SELECT id, name, last, time, (SELECT piece FROM place WHERE channel = channel.id ORDER BY first DESC LIMIT 1) FROM channel`, func(row []driver.Value) error {
		ch := &channel{id: integer(row[0]), name: text(row[1]), last: sequence(row[2]), written: sequence(row[2]), time: integer(row[3]), piece: -1, row: true}
		if row[4] != nil {
			ch.piece = integer(row[4])
		}
		c.channels[ch.name] = ch
		c.lastID.channel = max(c.lastID.channel, ch.id)
		return nil
	})
	if err != nil {
		return err
	}
	// The newest message of a channel says what its row may not know yet.
	for _, ch := range c.channels {
		if err := c.db.query(newestOf, func(row []driver.Value) error {
			ch.last, ch.time = max(ch.last, sequence(row[0])), max(ch.time, integer(row[1]))
			return nil
		}, ch.piece, ch.id); err != nil {
			return err
		}
	}
	if c.lastID.message, err = c.db.integer("SELECT max(id) FROM message"); err != nil {
		return err
	}
	lost, err := c.db.integer(lastMessage)
	if err != nil {
		return err
	}
	c.lastID.message = max(c.lastID.message, lost)
	c.lastID.dead, err = c.db.integer("SELECT seq FROM sqlite_sequence WHERE name = 'dead'")
	return err
}

// loadSeen reads the filter of the segment that goes on; older ones follow
// while the adapter works ([Adapter.remember]).
func (c *core) loadSeen() (err error) {
	c.seen.reserve(c.lastID.message)
	last := len(c.seen.segments) - 1
	if c.seen.segments[last], err = c.seen.readSegment(c.db, last); err != nil {
		return fmt.Errorf("read the idempotency keys: %w", err)
	}
	return nil
}

func (c *core) channelsByID() map[int64]*channel {
	out := map[int64]*channel{}
	for _, ch := range c.channels {
		out[ch.id] = ch
	}
	return out
}

// selectPending is what is in queues, in the order of messages, so that each
// page is read once.
const selectPending = `SELECT d.message, d.recipient, d.attempts, d.nonce, d.until, d.span, d.reason,
			m.channel, m.seq, m.time, m.sender, m.key, m.type, m.priority, m.reply, m.root, length(m.body)
		FROM delivery AS d INDEXED BY delivery_pending CROSS JOIN message AS m ON m.id = d.message WHERE d.state = 0 ORDER BY d.message`

func (c *core) loadQueues(wall time.Time, mono time.Duration) error {
	channels := c.channelsByID()
	var r *record
	return c.db.query(selectPending, func(row []driver.Value) error {
		if r == nil || r.id != integer(row[0]) { // the recipients of a message follow each other
			r = &record{
				id: integer(row[0]), channel: channels[integer(row[7])], seq: sequence(row[8]), time: integer(row[9]), sender: integer(row[10]),
				typ: Type(text(row[12])), rank: integer(row[13]), reply: sequence(row[14]), root: sequence(row[15]), size: integer(row[16]),
			}
			if r.channel == nil {
				return fmt.Errorf("message %d is in channel %d, which does not exist: stop the adapter and repair the store", r.id, integer(row[7]))
			}
			copy(r.key[:], blob(row[11]))
			r.critical = allowed.Critical(r.typ)
		}
		r.refs++
		e := &entry{record: r, queue: c.queueOf(integer(row[1])), attempts: int(integer(row[2])), nonce: integer(row[3]), reason: text(row[6]), heap: -1}
		c.charge(r.sender, r.weight())
		c.resume(e, integer(row[4]), integer(row[5]), wall, mono)
		return nil
	})
}

// resume puts a delivery back to where it was. What it waited for is at most
// span away, whatever the wall clock did in the meantime.
func (c *core) resume(e *entry, until, span int64, wall time.Time, mono time.Duration) {
	rest := time.Duration(min(max(until-wall.UnixMilli(), 0), span)) * time.Millisecond
	e.queue.add(e)
	l := e.queue.channels[e.channel.id]
	switch {
	case e.nonce != 0 && l.next < len(l.entries) && l.entries[l.next] == e:
		e.queue.set(e, leased)
		l.next++
		e.due = mono + rest // over already: expires with the first transaction
		c.due.put(e)
	case e.nonce != 0:
		// Leased, but an earlier one of its channel is not: it comes again after that.
		e.nonce = 0
		e.attempts--
	case rest > 0:
		e.queue.set(e, waiting)
		e.due = mono + rest
		c.due.put(e)
	}
}

func (c *core) loadDead() error {
	channels := c.channelsByID()
	if err := c.db.query(`SELECT dead.recipient, message.sender, count(*), sum(length(message.body)), message.channel, max(dead.evicted * message.seq)
		FROM dead JOIN message ON message.id = dead.message WHERE dead.ended = 0 GROUP BY dead.recipient, message.sender, message.channel`, func(row []driver.Value) error {
		n := integer(row[2])
		q := c.queueOf(integer(row[0]))
		q.dead += int(n)
		if ch := channels[integer(row[4])]; ch != nil && sequence(row[5]) > 0 {
			l := q.lane(ch)
			l.missed = max(l.missed, sequence(row[5]))
		}
		c.bury(integer(row[1]), q.recipient, integer(row[3])+n*overhead)
		return nil
	}); err != nil {
		return err
	}
	if err := c.db.query(`SELECT d.id, m.sender, d.recipient, channel.name, m.seq, m.key, m.type, d.attempts, d.reason
		FROM dead AS d JOIN message AS m ON m.id = d.message JOIN channel ON channel.id = m.channel WHERE d.told = 0 ORDER BY d.id`, func(row []driver.Value) error {
		sender := integer(row[1])
		u := c.owed(sender)
		var k key
		copy(k[:], blob(row[5]))
		u.failures = append(u.failures, Failure{
			DeadLetter: integer(row[0]), From: c.names[sender], Recipient: c.names[integer(row[2])], Channel: text(row[3]), Sequence: sequence(row[4]),
			IdempotencyKey: k.String(), Type: Type(text(row[6])), Attempts: int(integer(row[7])), Reason: text(row[8]),
		})
		return nil
	}); err != nil {
		return err
	}
	return c.db.query("SELECT id, sender, recipient, channel, key, type, reason FROM late ORDER BY id", func(row []driver.Value) error {
		u := c.owed(integer(row[1]))
		u.late++
		u.failures = append(u.failures, Failure{
			late: integer(row[0]), From: c.names[integer(row[1])], Recipient: text(row[2]), Channel: text(row[3]),
			IdempotencyKey: text(row[4]), Type: Type(text(row[5])), Reason: text(row[6]),
		})
		c.lastID.late = max(c.lastID.late, integer(row[0]))
		return nil
	})
}
