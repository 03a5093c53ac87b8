package shelf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
)

const (
	sweepBatch = 256
	// maxGiven bounds the messages of one read, which the server holds until they
	// are taken. One message of the largest size always fits, and so does a frame.
	maxGiven = topic.MaxMessage + 256<<10
	// minFree is what must be free on the disk: the host's own need comes first.
	minFree = 256 << 20
)

// Shelf is the open topics of one team. Its methods may be called concurrently.
// Errors are *deny.Reason.
type Shelf struct {
	store *store.Store
	dir   *os.File // of the database, for what is free there
	keep  int64    // [topic.Keep], or fewer in a test
}

// Open opens the database below dir, and makes it when it is not there. now may
// be nil.
func Open(ctx context.Context, dir, team string, log *slog.Logger, now func() time.Time) (*Shelf, error) {
	d, err := os.Open(dir) // #nosec G304 G703 -- our own data
	if err != nil {
		return nil, fmt.Errorf("topics: %w", err)
	}
	path := filepath.Join(dir, team+".db")
	// SQLite takes an empty file for a new database, and gives its log the same mode.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600) // #nosec G304 G703 -- our own data
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("topics of %s: %w", team, err), d.Close())
	}
	// Nothing is charged there: bytes are counted for each publisher.
	s, err := store.Open(ctx, store.Config{Path: path, Quota: 1 << 42, Log: log, Now: now})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("topics of %s: %w", team, err), d.Close())
	}
	out := &Shelf{store: s, dir: d, keep: topic.Keep}
	if err := s.Migrate(ctx, "topic", schema); err != nil {
		return nil, errors.Join(fmt.Errorf("topics of %s: %w", team, err), out.Close())
	}
	s.Expire(expire)
	return out, nil
}

// schema is by version; a released step is never changed. Of event the size
// stands before the message, which may fill many pages, so that it can be read
// without it.
var schema = [][]string{{
	`CREATE TABLE topic (
		name TEXT PRIMARY KEY,
		last INTEGER NOT NULL -- number of its newest message, from 1
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE event (
		topic     TEXT NOT NULL,
		seq       INTEGER NOT NULL,
		time      INTEGER NOT NULL, -- ms since 1970
		publisher TEXT NOT NULL,
		key       TEXT NOT NULL,
		size      INTEGER NOT NULL, -- that counts towards the publisher's bytes
		message   BLOB NOT NULL,    -- JSON
		PRIMARY KEY (topic, seq)
	) STRICT, WITHOUT ROWID`,
	`CREATE UNIQUE INDEX event_key ON event (publisher, key)`,
	`CREATE INDEX event_publisher ON event (topic, publisher, seq)`,
	`CREATE INDEX event_time ON event (time)`,
	`CREATE TABLE share (
		topic     TEXT NOT NULL,
		publisher TEXT NOT NULL,
		messages  INTEGER NOT NULL,
		bytes     INTEGER NOT NULL,
		PRIMARY KEY (topic, publisher)
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE subscription (
		reader   TEXT NOT NULL,
		topic    TEXT NOT NULL,
		name     TEXT NOT NULL,
		position INTEGER NOT NULL, -- number of the last message that it was given
		PRIMARY KEY (reader, topic, name)
	) STRICT, WITHOUT ROWID`,
}}

// Close answers what waits, and ends.
func (s *Shelf) Close() error { return errors.Join(s.store.Close(), s.dir.Close()) }

// Remove removes what is kept of a team, which nobody has open.
func Remove(dir, team string) error {
	var errs []error
	for _, name := range topic.Files(team) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) { // #nosec G304 G703 -- our own data
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func refuse(c deny.Code, name, why, mend string) *deny.Reason {
	return tool.Refuse(c, topic.Prefix+name, why, mend)
}

// ours gives a failure of the store, which speaks of gateways, in words of
// topics.
func ours(name string, err error) error {
	var r *deny.Reason
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &r):
		r = refuse(deny.ToolUnavailable, name, err.Error(), "")
	case r.Code != deny.ToolUnavailable:
		return err
	}
	out := refuse(deny.ToolUnavailable, name, "the team's public topics: "+r.Why, "try again; when it stays, the operator finds why with `bulkhead status`")
	out.RetryAfter = 1
	return out
}

// Publish puts a message of an agent into a topic. It returns when that is on
// disk. storage bounds the bytes of the agent's messages there.
func (s *Shelf) Publish(ctx context.Context, agent string, storage int64, q protocol.Publish) (protocol.Published, error) {
	out := protocol.Published{}
	switch {
	case len(q.Key) == 0 || len(q.Key) > topic.MaxKey:
		return out, refuse(deny.ToolInvalid, q.Topic, fmt.Sprintf("a key has 1 to %d bytes", topic.MaxKey), "send a key of its own with each message")
	case len(q.Message) == 0:
		return out, refuse(deny.ToolInvalid, q.Topic, "there is no message", "send any JSON value")
	case len(q.Message) > topic.MaxMessage:
		return out, refuse(deny.ToolTooLarge, q.Topic, fmt.Sprintf("the message has more than %d bytes", topic.MaxMessage), "send it in parts")
	}
	if err := s.room(q.Topic); err != nil {
		return out, err
	}
	err := s.store.Update(ctx, func(t *store.Tx) (err error) {
		out.Seq, err = s.publish(t, agent, storage, q)
		return err
	})
	return out, ours(q.Topic, err)
}

// room refuses when the disk is nearly full.
func (s *Shelf) room(name string) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.dir.Fd()), &st); err != nil { // #nosec G115 -- a descriptor
		return ours(name, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFree { // #nosec G115 -- never negative
		return ours(name, fmt.Errorf("%d MiB are free on their disk, fewer than %d", free>>20, minFree>>20))
	}
	return nil
}

func (s *Shelf) publish(t *store.Tx, agent string, storage int64, q protocol.Publish) (seq int64, err error) {
	before := ""
	same := false
	err = t.Query("SELECT topic, seq, message FROM event WHERE publisher = ? AND key = ?", func(row []sqlite.Value) error {
		before, seq, same = sqlite.Text(row[0]), sqlite.Int(row[1]), bytes.Equal(sqlite.Blob(row[2]), q.Message)
		return nil
	}, agent, q.Key)
	switch {
	case err != nil:
		return 0, err
	case before == q.Topic && same:
		return seq, nil
	case before != "":
		return 0, refuse(deny.ToolConflict, q.Topic, "the key was used for another message", "send a key of its own with each message")
	}
	last := int64(0)
	if err := t.Query("SELECT last FROM topic WHERE name = ?", func(row []sqlite.Value) error { last = sqlite.Int(row[0]); return nil }, q.Topic); err != nil {
		return 0, err
	}
	seq = last + 1
	size := int64(len(q.Message) + topic.Cost)
	if err := s.makeRoom(t, agent, storage, size, q.Topic); err != nil {
		return 0, err
	}
	for _, do := range []struct {
		sql  string
		args []any
	}{
		{"INSERT INTO topic (name, last) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET last = excluded.last", []any{q.Topic, seq}},
		{"INSERT INTO event (topic, seq, time, publisher, key, size, message) VALUES (?, ?, ?, ?, ?, ?, ?)", []any{q.Topic, seq, t.Now().UnixMilli(), agent, q.Key, size, []byte(q.Message)}},
		{"INSERT INTO share (topic, publisher, messages, bytes) VALUES (?, ?, 1, ?) ON CONFLICT DO UPDATE SET messages = messages + 1, bytes = bytes + excluded.bytes", []any{q.Topic, agent, size}},
	} {
		if _, err := t.Exec(do.sql, do.args...); err != nil {
			return 0, err
		}
	}
	return seq, nil
}

// makeRoom lets go of the publisher's own oldest messages in the topic when it
// has as many as are kept, and of those that have expired when bytes are short.
func (s *Shelf) makeRoom(t *store.Tx, agent string, storage, size int64, name string) error {
	messages, used, err := shareOf(t, agent, name)
	if err != nil {
		return err
	}
	if over := messages - s.keep + 1; over > 0 {
		err = drop(t, "SELECT topic, seq FROM event WHERE topic = ? AND publisher = ? ORDER BY seq LIMIT ?", name, agent, over)
	}
	if err == nil && used+size > storage {
		err = drop(t, "SELECT topic, seq FROM event WHERE topic = ? AND publisher = ? AND time <= ?", name, agent, oldest(t))
	}
	if err != nil {
		return err
	}
	if _, used, err = shareOf(t, agent, name); err == nil && used+size > storage {
		err = refuse(deny.ToolQuota, name, fmt.Sprintf("the messages of %s in it use %d of %d bytes, and this one has %d", agent, used, storage, size),
			fmt.Sprintf("wait until some are a day old; or raise topics.%s.storage in bulkhead.yaml", name))
	}
	return err
}

func shareOf(t *store.Tx, agent, name string) (messages, used int64, err error) {
	err = t.Query("SELECT messages, bytes FROM share WHERE topic = ? AND publisher = ?", func(row []sqlite.Value) error {
		messages, used = sqlite.Int(row[0]), sqlite.Int(row[1])
		return nil
	}, name, agent)
	return messages, used, err
}

// gone is what was removed of one publisher's messages in one topic.
type gone struct{ topic, publisher string }

// drop removes the messages that a statement selects by topic and seq.
func drop(t *store.Tx, which string, args ...any) error {
	_, err := dropped(t, which, args...)
	return err
}

func dropped(t *store.Tx, which string, args ...any) (n int, err error) {
	type sum struct{ messages, bytes int64 }
	sums := map[gone]sum{}
	err = t.Query("DELETE FROM event WHERE (topic, seq) IN ("+which+") RETURNING topic, publisher, size", func(row []sqlite.Value) error {
		k := gone{sqlite.Text(row[0]), sqlite.Text(row[1])}
		x := sums[k]
		x.messages++
		x.bytes += sqlite.Int(row[2])
		sums[k] = x
		n++
		return nil
	}, args...)
	for k, x := range sums {
		if err != nil {
			break
		}
		_, err = t.Exec("UPDATE share SET messages = messages - ?, bytes = bytes - ? WHERE topic = ? AND publisher = ?", x.messages, x.bytes, k.topic, k.publisher)
	}
	return n, err
}

// oldest is the time from which on messages are still given.
func oldest(t *store.Tx) int64 { return t.Now().Add(-topic.For).UnixMilli() }

// expire lets go of some messages that are too old.
func expire(t *store.Tx) (more bool, err error) {
	n, err := dropped(t, "SELECT topic, seq FROM event WHERE time <= ? LIMIT ?", oldest(t), sweepBatch)
	return n == sweepBatch, err
}

// Sweep lets go of everything that is too old. It is done each minute besides.
func (s *Shelf) Sweep(ctx context.Context) error { return s.store.Sweep(ctx) }
