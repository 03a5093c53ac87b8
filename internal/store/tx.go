package store

import (
	"fmt"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/tool"
)

// Tx is the transaction of one function of [Store.Update] or [Store.View].
type Tx struct {
	store *Store
	db    *sqlite.Conn
	now   time.Time
	used  int64
	quota int64  // of the function at work
	lines []line // records of the function at work
	spool pending
	after []func()
}

// Now is the time of the transaction.
func (t *Tx) Now() time.Time { return t.now }

// Exec runs one statement, see [sqlite.Conn.Exec].
func (t *Tx) Exec(sql string, args ...any) (changed int64, err error) { return t.db.Exec(sql, args...) }

// Query hands every row to f, see [sqlite.Conn.Query].
func (t *Tx) Query(sql string, f func(row []sqlite.Value) error, args ...any) error {
	return t.db.Query(sql, f, args...)
}

// Int reads one number, see [sqlite.Conn.Int].
func (t *Tx) Int(sql string, args ...any) (int64, error) { return t.db.Int(sql, args...) }

// Record writes r down with the transaction. When the spool has no room, the
// function's effect is undone and refused.
func (t *Tx) Record(r record.Record) { t.lines = append(t.lines, encode(r)) }

// After has f called once the transaction is on disk, by whoever did the transaction: it must not wait.
func (t *Tx) After(f func()) { t.after = append(t.after, f) }

// Charge counts n more bytes towards the quota, or, below 0, fewer. When they
// do not fit, what has expired is let go of first, then what can be spared
// ([Store.Spare]); then it refuses with
// tools.quota.
func (t *Tx) Charge(n int64) error {
	if n > 0 && t.used+n > t.quota {
		if err := t.letGo(t.store.expirers(), t.quota-n); err != nil {
			return err
		}
	}
	// What an agent may look back at does not make room for one caller of less.
	if most := t.store.cfg.Quota; n > 0 && n <= t.quota && t.used+n > most {
		if err := t.letGo(t.store.spares(), most-n); err != nil {
			return err
		}
	}
	if n > 0 && t.used+n > t.quota {
		if t.quota < t.store.cfg.Quota {
			return tool.Refuse(deny.ToolQuota, "tools.memory", fmt.Sprintf("this agent uses %d bytes of memory for mem, vec and events, and with this token none may be added above %d", t.used, t.quota),
				"delete something, or get a token that allows more (memoryQuotaBytes)")
		}
		return tool.Refuse(deny.ToolQuota, "tools.memory",
			"this agent has used up its memory for mem, vec and events", "delete something, give things a shorter ttl, or raise tools.memory of the agent in bulkhead.yaml")
	}
	t.used += n
	return nil
}

// Used is what counts towards the quota now, in bytes.
func (t *Tx) Used() int64 { return t.used }

// letGo has each of list let go of something until no more than goal bytes are used, or
// there is nothing more.
func (t *Tx) letGo(list []func(*Tx) (bool, error), goal int64) error {
	for _, f := range list {
		for t.used > goal {
			more, err := f(t)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
	return nil
}

// flush writes what the transaction as a whole has.
func (t *Tx) flush() error {
	if t.used != t.store.w.used {
		if err := t.set("used", t.used); err != nil {
			return err
		}
	}
	return t.writeSpool()
}

func (t *Tx) set(name string, value int64) error {
	_, err := t.db.Exec("INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)
	return err
}
