package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"
)

const (
	tendFirst  = time.Minute
	tendEvery  = time.Hour
	pruneBatch = 500 // messages in one transaction, so that nobody waits for it
	// clockDoubt is how much the wall clock may run ahead of the monotonic one
	// before nothing is pruned: after a jump everything would look old.
	clockDoubt = time.Hour
)

// tend prunes what is older than the retention, now and then.
func (a *Adapter) tend() {
	ctx, cancel := context.WithCancel(context.Background())
	a.others.Go(func() { <-a.stop; cancel() })
	wall, mono := a.clock(), a.mono()
	// Soon after the start, too, for an adapter that is restarted every day.
	for wait := tendFirst; a.sleep(wait); wait = tendEvery {
		if jump := a.clock().Sub(wall) - (a.mono() - mono); jump > clockDoubt {
			a.log.Error("the wall clock jumped ahead; nothing is pruned until the adapter is started anew", "by", jump)
			continue
		}
		if err := a.prune(ctx); err != nil && !errors.Is(err, context.Canceled) {
			a.log.Error("old messages could not be pruned", "error", err)
		}
	}
}

// prune forgets messages whose last delivery ended before the retention, with
// their deliveries and dead letters. The newest message always stays, so that
// positions and sequences are never given twice.
func (a *Adapter) prune(ctx context.Context) error {
	before := a.clock().Add(-a.keep)
	for from, pruned := int64(0), 0; ; {
		var old []int64
		next := int64(0)
		if err := a.read(ctx, "", func(c *conn) error {
			return c.query("SELECT id, type, (SELECT max(CASE state WHEN 0 THEN 1 << 62 ELSE ended END) FROM delivery WHERE message = id) FROM message"+
				" WHERE id > ? AND time < ? AND id < (SELECT max(id) FROM message) ORDER BY id LIMIT ?", func(row []driver.Value) error {
				next = integer(row[0])
				if !kept(Type(text(row[1]))) && integer(row[2]) < before.UnixMilli() {
					old = append(old, next)
				}
				return nil
			}, from, before.UnixNano(), pruneBatch)
		}); err != nil {
			return err
		}
		if next == 0 {
			if pruned == 0 {
				return nil
			}
			a.log.Info("old messages pruned", "messages", pruned, "before", before)
			return a.do(ctx, &op{cost: pruneBatch, run: func(t *txn) { t.forgetPlaces() }})
		}
		if len(old) > 0 {
			if err := a.do(ctx, &op{cost: len(old), run: func(t *txn) { t.prune(old) }}); err != nil {
				return err
			}
		}
		from, pruned = next, pruned+len(old)
	}
}

func (t *txn) prune(ids []int64) {
	for _, ch := range t.channels { // their rows alone remember what their messages did
		if ch.written != ch.last {
			t.touched[ch] = true
		}
	}
	t.flush()
	for _, id := range ids {
		// A dead letter may have been replayed since it was looked at.
		pending, err := t.db.integer("SELECT count(*) FROM delivery WHERE message = ? AND state = 0", id)
		if t.fail(err); err != nil || pending > 0 {
			continue
		}
		t.fail(t.db.query(`SELECT d.recipient, m.sender, length(m.body) FROM dead AS d JOIN message AS m ON m.id = d.message
			WHERE d.message = ? AND d.ended = 0`, func(row []driver.Value) error {
			t.queueOf(integer(row[0])).dead--
			t.bury(integer(row[1]), integer(row[0]), -integer(row[2])-overhead)
			return nil
		}, id))
		t.exec("DELETE FROM dead WHERE message = ?", id)
		t.exec("DELETE FROM delivery WHERE message = ?", id)
		t.exec("DELETE FROM message WHERE id = ?", id)
		t.counts.Pruned++
	}
}

const deletePlaces = `DELETE FROM place WHERE piece < ?
	AND NOT EXISTS (SELECT 1 FROM message INDEXED BY message_seq WHERE id >> 12 = +place.piece AND channel = place.channel)`

// forgetPlaces drops what points to nothing any more, except in the piece
// that still grows.
func (t *txn) forgetPlaces() {
	t.flush()
	t.exec(deletePlaces, t.lastID.message>>placeBits)
}
