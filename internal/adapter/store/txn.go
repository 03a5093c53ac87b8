package store

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// txn is one transaction of the writer: what many callers asked for. Memory
// is changed while it goes; when the commit fails, memory is read anew from
// the database, which is the truth.
type txn struct {
	*core
	wall  time.Time
	mono  time.Duration
	begun bool
	err   error // the first error of the database: nothing of this transaction counts

	messages []*record
	places   []*record // the first messages of their channels in a piece
	dirty    []*entry
	deaths   []*death
	after    []func() // once it is on disk
	served   []*waiter
}

type senderKey struct {
	sender int64
	key    key
}

func (c *core) newTxn(wall time.Time, mono time.Duration) *txn {
	return &txn{core: c, wall: wall, mono: mono}
}

func (t *txn) ms() int64 { return t.wall.UnixMilli() }

// exec writes, after it began the transaction when nothing was written yet.
func (t *txn) exec(sql string, args ...any) {
	if t.err != nil {
		return
	}
	if !t.begun {
		if t.err = t.db.exec("BEGIN IMMEDIATE"); t.err != nil {
			return
		}
		t.begun = true
	}
	t.err = t.db.exec(sql, args...)
}

// touch has e written with this transaction, in the state that it then has.
func (t *txn) touch(e *entry) {
	if !e.dirty {
		e.dirty = true
		t.dirty = append(t.dirty, e)
	}
}

// Rows in one statement. Few different ones, so that all stay prepared.
var strides = []int{64, 32, 16, 8, 4, 2, 1}

const (
	messageColumns  = 11
	deliveryColumns = 9
	freshColumns    = 2 // of a delivery that nothing has happened to
)

// Who inserts many rows as one statement has SQLite keep a copy of each page, so
// that the statement can be undone by itself. OR ROLLBACK says that it need not
// be: what fails ends the transaction, as any error does here. A table whose key
// is the row's id, as message is, has its pages copied whatever is said.
//
// They are made when they are first used: every gateway is the same program, and
// would make them at its start.
var insertMessages, insertDeliveries, upsertDeliveries = statements(
	"INSERT INTO message (id, channel, seq, time, sender, key, type, priority, reply, root, body) VALUES ", messageColumns, "",
), statements(
	"INSERT OR ROLLBACK INTO delivery (message, recipient, state, attempts, nonce, until, span, ended, reason) VALUES ", freshColumns, "",
), statements(
	"INSERT INTO delivery (message, recipient, state, attempts, nonce, until, span, ended, reason) VALUES ", deliveryColumns,
	" ON CONFLICT (message, recipient) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, nonce = excluded.nonce,"+
		" until = excluded.until, span = excluded.span, ended = excluded.ended, reason = excluded.reason",
)

func statements(head string, columns int, tail string) func() map[int]string {
	return sync.OnceValue(func() map[int]string {
		row := "(?" + strings.Repeat(", ?", columns-1) + ")"
		if columns == freshColumns {
			row = "(?, ?, 0, 0, 0, 0, 0, 0, '')"
		}
		out := map[int]string{}
		for _, n := range strides {
			out[n] = head + row + strings.Repeat(", "+row, n-1) + tail
		}
		return out
	})
}

// rows writes n rows with as few statements as there can be.
func (t *txn) rows(n int, sql map[int]string, row func(i int)) {
	for i := 0; i < n; {
		for _, stride := range strides {
			if n-i < stride {
				continue
			}
			t.args = t.args[:0]
			for j := range stride {
				row(i + j)
			}
			t.exec(sql[stride], t.args...)
			i += stride
			break
		}
	}
}

// flush writes what the operations changed.
func (t *txn) flush() {
	for ch := range t.touched {
		if ch.row {
			t.exec("UPDATE channel SET last = ?, time = ? WHERE id = ?", number(ch.last), ch.time, ch.id)
		} else {
			t.exec("INSERT INTO channel (id, name, last, time) VALUES (?, ?, ?, ?)", ch.id, ch.name, number(ch.last), ch.time)
			ch.row = true
		}
		ch.written = ch.last
	}
	clear(t.touched)
	t.rows(len(t.messages), insertMessages(), func(i int) {
		m := t.messages[i]
		t.args = append(t.args, m.id, m.channel.id, number(m.seq), m.time, m.sender, m.key[:], string(m.typ), m.rank, number(m.reply), number(m.root), m.body)
	})
	t.messages = t.messages[:0]
	for _, m := range t.places {
		t.exec("INSERT INTO place (channel, first, piece) VALUES (?, ?, ?)", m.channel.id, number(m.seq), m.id>>placeBits)
	}
	t.places = t.places[:0]
	// Most are new and nobody has them yet.
	t.fresh, t.changed = t.fresh[:0], t.changed[:0]
	for _, e := range t.dirty {
		if e.fresh && e.state == ready && e.attempts == 0 && e.nonce == 0 && e.ended == 0 && e.reason == "" {
			t.fresh = append(t.fresh, e)
		} else {
			t.changed = append(t.changed, e)
		}
		e.dirty, e.fresh = false, false
	}
	t.dirty = t.dirty[:0]
	t.rows(len(t.fresh), insertDeliveries(), func(i int) {
		t.args = append(t.args, t.fresh[i].id, t.fresh[i].queue.recipient)
	})
	t.rows(len(t.changed), upsertDeliveries(), func(i int) {
		e := t.changed[i]
		state, until, span := int64(0), int64(0), int64(0)
		switch e.state {
		case leased, waiting:
			span = (e.due - t.mono).Milliseconds()
			until = t.ms() + span
		case done:
			state = 1
		case dead:
			state = 2
		}
		t.args = append(t.args, e.id, e.queue.recipient, state, e.attempts, e.nonce, until, span, e.ended, e.reason)
	})
	for _, d := range t.deaths {
		t.exec("INSERT INTO dead (id, message, recipient, channel, at, attempts, reason, told, evicted, ended, how) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '')",
			d.id, d.message, d.recipient, d.channel, d.at, d.attempts, d.reason, d.told, d.evicted)
	}
	t.deaths = t.deaths[:0]
}

// letGo lets go of what the transaction kept.
func (t *txn) letGo() {
	clear(t.touched)
	clear(t.keys)
	clear(t.args[:cap(t.args)])
	clear(t.fresh[:cap(t.fresh)])
	clear(t.changed[:cap(t.changed)])
}

// commit makes it durable. It returns the first error of the transaction.
func (t *txn) commit() error {
	t.flush()
	if !t.begun {
		return t.err
	}
	if t.err == nil {
		t.err = t.db.exec("COMMIT")
	}
	if t.err != nil {
		_ = t.db.exec("ROLLBACK") // SQLite may have done so itself
		return fmt.Errorf("commit: %w", t.err)
	}
	return nil
}
