package store

import (
	"fmt"
)

// applicationID marks the file as a message store ("BkMs"), so that no other
// database is taken for one.
const applicationID = 0x426b4d73

// placeAll makes all rows of place.
const placeAll = "INSERT INTO place (channel, first, piece) SELECT channel, min(seq), id >> 12 FROM message GROUP BY channel, id >> 12"

// deadChannels gives dead letters of an earlier version their channels.
const deadChannels = "UPDATE dead SET channel = coalesce((SELECT channel FROM message WHERE message.id = dead.message), 0) WHERE channel = 0"

// deadEvicted says of dead letters of an earlier version which of them had no place.
const deadEvicted = "UPDATE dead SET evicted = 1 WHERE attempts = 0 OR reason LIKE 'evicted: %'"

// migrations lead from one user_version to the next; each is one transaction.
// One that was released is never changed: a new one is added.
var migrations = [][]string{{
	`CREATE TABLE agent (
		id   INTEGER PRIMARY KEY,
		name TEXT NOT NULL UNIQUE
	) STRICT`,
	`CREATE TABLE channel (
		id   INTEGER PRIMARY KEY,
		name TEXT NOT NULL UNIQUE,
		last INTEGER NOT NULL, -- the last sequence that was given
		time INTEGER NOT NULL  -- and its time, so that the next is not before it
	) STRICT`,
	`CREATE TABLE message (
		id       INTEGER PRIMARY KEY, -- order of acceptance in the whole team
		channel  INTEGER NOT NULL,
		seq      INTEGER NOT NULL,
		time     INTEGER NOT NULL, -- ns since 1970
		sender   INTEGER NOT NULL,
		key      BLOB NOT NULL,    -- the 16 bytes of the idempotency key
		type     TEXT NOT NULL,
		priority INTEGER NOT NULL, -- 0 low, 1 normal, 2 high
		reply    INTEGER NOT NULL, -- the sequence that it answers, or 0
		root     INTEGER NOT NULL, -- the sequence that its thread began with, or 0
		body     BLOB NOT NULL
	) STRICT`,
	`CREATE UNIQUE INDEX message_key ON message (sender, key)`,
	`CREATE UNIQUE INDEX message_seq ON message (channel, seq)`,
	`CREATE INDEX message_thread ON message (channel, root, seq) WHERE root > 0`,
	`CREATE TABLE delivery (
		message   INTEGER NOT NULL,
		recipient INTEGER NOT NULL,
		state     INTEGER NOT NULL, -- 0 pending, 1 acknowledged, 2 dead
		attempts  INTEGER NOT NULL, -- leases that were given
		nonce     INTEGER NOT NULL, -- of the lease; 0: none
		until     INTEGER NOT NULL, -- ms since 1970: the lease's end, or when it may be leased again
		span      INTEGER NOT NULL, -- ms that until was ahead when it was written: bounds it after a clock jump
		ended     INTEGER NOT NULL, -- ms since 1970, when no longer pending
		reason    TEXT NOT NULL,    -- of the last refusal
		PRIMARY KEY (message, recipient)
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX delivery_pending ON delivery (recipient, message) WHERE state = 0`,
	`CREATE TABLE dead (
		id        INTEGER PRIMARY KEY AUTOINCREMENT,
		message   INTEGER NOT NULL,
		recipient INTEGER NOT NULL,
		at        INTEGER NOT NULL, -- ms since 1970
		attempts  INTEGER NOT NULL,
		reason    TEXT NOT NULL,
		told      INTEGER NOT NULL, -- 1: its sender and the orchestrator have their notices
		ended     INTEGER NOT NULL, -- ms since 1970 when an operator replayed or dropped it, else 0
		how       TEXT NOT NULL     -- replayed, dropped
	) STRICT`,
	`CREATE INDEX dead_message ON dead (message)`,
	`CREATE INDEX dead_present ON dead (recipient, id) WHERE ended = 0`,
	`CREATE INDEX dead_untold ON dead (id) WHERE told = 0`,
}, {
	// A send dirties as few pages as there can be: an index that is in the
	// order of messages, or is cut into pieces by it, is written at its end
	// alone. seen.go finds the piece of a key, place that of a sequence.
	`DROP INDEX message_key`,
	`CREATE UNIQUE INDEX message_key ON message (id >> 10, sender, key)`,
	`DROP INDEX message_seq`,
	`CREATE UNIQUE INDEX message_seq ON message (id >> 12, channel, seq)`,
	`CREATE TABLE place (
		channel INTEGER NOT NULL,
		first   INTEGER NOT NULL, -- the first sequence that the channel got in the piece
		piece   INTEGER NOT NULL, -- of message_seq
		PRIMARY KEY (channel, first)
	) STRICT, WITHOUT ROWID`,
	placeAll,
	`DROP INDEX delivery_pending`,
	`CREATE INDEX delivery_pending ON delivery (message, recipient) WHERE state = 0`,
	// channel.last and channel.time are at least what is written there; the
	// newest message of the channel says more.
}, {
	`CREATE TABLE request (
		id      INTEGER PRIMARY KEY AUTOINCREMENT,
		by      TEXT NOT NULL,
		channel TEXT NOT NULL,
		agent   TEXT NOT NULL,
		change  TEXT NOT NULL,    -- join, leave
		reason  TEXT NOT NULL,
		at      INTEGER NOT NULL, -- ms since 1970
		expires INTEGER NOT NULL,
		state   TEXT NOT NULL,    -- adapter.RequestState
		decided INTEGER NOT NULL, -- ms since 1970, or 0
		why     TEXT NOT NULL
	) STRICT`,
	// What was approved and the manifest does not say. A row is in force while the
	// manifest gives the channel the members that it had then.
	`CREATE TABLE membership (
		id      INTEGER PRIMARY KEY,
		channel TEXT NOT NULL,
		agent   TEXT NOT NULL,
		change  TEXT NOT NULL,
		first   INTEGER NOT NULL, -- with join: the first sequence that the agent may read
		request INTEGER NOT NULL,
		at      INTEGER NOT NULL, -- ms since 1970
		base    TEXT NOT NULL,    -- the manifest's members when it was approved
		UNIQUE (channel, agent)
	) STRICT`,
}, {
	// What an agent missed of a channel is found without looking at what it did not
	// miss, or missed of others: it is asked for while somebody floods.
	`ALTER TABLE dead ADD COLUMN channel INTEGER NOT NULL DEFAULT 0`,
	deadChannels,
	`CREATE INDEX dead_missed ON dead (recipient, channel, message) WHERE ended = 0 AND attempts = 0`,
}, {
	// A lease that never arrived is a try: tries do not say whether a message was handed out.
	`ALTER TABLE dead ADD COLUMN evicted INTEGER NOT NULL DEFAULT 0`, // 1: it had no place in the queue
	deadEvicted,
	`DROP INDEX dead_missed`,
	`CREATE INDEX dead_missed ON dead (recipient, channel, message) WHERE ended = 0 AND evicted = 1`,
}, {
	// Drafts that were refused after an outbox had accepted them, until their senders
	// have the notice. All words are cut to what they may have.
	`CREATE TABLE late (
		id        INTEGER PRIMARY KEY,
		sender    INTEGER NOT NULL,
		recipient TEXT NOT NULL,
		channel   TEXT NOT NULL,
		key       TEXT NOT NULL,
		type      TEXT NOT NULL,
		reason    TEXT NOT NULL
	) STRICT`,
}}

// migrate brings a database to the newest schema. A newer one than this
// program knows is refused: an older program must not write into it.
func migrate(c *conn) error {
	version, err := c.integer("PRAGMA user_version")
	if err != nil {
		return err
	}
	id, err := c.integer("PRAGMA application_id")
	if err != nil {
		return err
	}
	tables, err := c.integer("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	if (version > 0 || tables > 0) && id != applicationID {
		return fmt.Errorf("it is not a message store: application_id %#x; move the file away", id)
	}
	if version > int64(len(migrations)) {
		return fmt.Errorf("its schema is version %d, this program knows %d: run the newer program, or restore a backup", version, len(migrations))
	}
	for v := int(version); v < len(migrations); v++ {
		if err := c.step(v); err != nil {
			return fmt.Errorf("migrate from version %d: %w", v, err)
		}
	}
	return nil
}

func (c *conn) step(v int) error {
	if err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	all := append(append([]string{}, migrations[v]...),
		fmt.Sprintf("PRAGMA application_id = %d", applicationID), fmt.Sprintf("PRAGMA user_version = %d", v+1), "COMMIT")
	for _, sql := range all {
		if err := c.exec(sql); err != nil {
			_ = c.exec("ROLLBACK") // the first error says more
			return err
		}
	}
	return nil
}
