package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"
)

// writer opens the connection that changes the database.
func (d dialect) writer(path string) (*conn, error) {
	pragmas := []string{
		"PRAGMA page_size = 8192", // of a new database: fewer frames of the log for a message than with 4096
		"PRAGMA journal_mode = WAL",
		"PRAGMA synchronous = FULL",                             // fsync of the log with every commit
		fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", logPages), // then its blocks are used again
		"PRAGMA cache_size = -16384",                            // KiB
		"PRAGMA temp_store = MEMORY",
		"PRAGMA foreign_keys = OFF",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cell_size_check = ON",
	}
	if d.solo {
		pragmas = append([]string{"PRAGMA locking_mode = EXCLUSIVE"}, pragmas...)
	}
	return d.with(path, pragmas)
}

// reader opens a connection that only reads, beside the writer.
func (d dialect) reader(path string) (*conn, error) {
	return d.with(path, []string{"PRAGMA query_only = ON", "PRAGMA busy_timeout = 5000", "PRAGMA cache_size = -2048", "PRAGMA trusted_schema = OFF"})
}

func (d dialect) with(path string, pragmas []string) (*conn, error) {
	c, err := d.connect(path)
	if err != nil {
		return nil, err
	}
	for _, p := range pragmas {
		// Some of them answer with a row.
		if err := c.query(p, func([]driver.Value) error { return nil }); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// checkIntegrity reads all of the database. What it finds is for Repair.
func checkIntegrity(ctx context.Context, c *conn) error {
	var found []string
	err := c.query("PRAGMA quick_check(20)", func(row []driver.Value) error {
		if s := text(row[0]); s != "ok" {
			found = append(found, s)
		}
		return ctx.Err()
	})
	if err != nil {
		found = append(found, err.Error())
	}
	if found != nil {
		return fmt.Errorf("%w: %s", ErrDamaged, strings.Join(found, "; "))
	}
	return nil
}

// ErrDamaged is what Open returns when the integrity check found damage.
var ErrDamaged = errors.New("the message store is damaged; stop the adapter and repair it (nothing readable is lost)")

// mend makes the adapter usable again after a transaction failed.
func (a *Adapter) mend() error {
	if !a.broken {
		return nil
	}
	old := a.core
	if a.reopen {
		// After a failed fsync the kernel may have forgotten pages of the log
		// that SQLite believes written. A checkpoint writes them anew, into
		// the database itself, before anything is built upon them.
		if old.db != nil {
			_ = old.db.close() // it failed before
			old.db = nil
		}
		db, err := a.dialect.writer(a.path)
		if err != nil {
			return err
		}
		if err := db.query("PRAGMA wal_checkpoint(TRUNCATE)", func([]driver.Value) error { return nil }); err != nil {
			return errors.Join(err, db.close())
		}
		old.db, a.reopen = db, false
	}
	c, err := load(old.db, a.log, a.manifest, a.clock(), a.mono())
	if err != nil {
		a.reopen = true
		return err
	}
	c.counts, c.seen = old.counts, old.seen // keys of what failed are there for nothing
	a.core, a.broken = c, false
	return nil
}

// read runs f on a connection of its own, beside the writer.
func (a *Adapter) read(ctx context.Context, agent string, f func(*conn) error) error {
	if a.dialect.solo {
		var failure error
		err := a.do(ctx, &op{agent: agent, cost: 1, after: func(c *conn) { failure = f(c) }})
		return errors.Join(err, failure)
	}
	select {
	case c := <-a.readers:
		defer func() { a.readers <- c }()
		if err := f(c); err != nil {
			return failed(err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-a.closed:
		return unavailable("the adapter is stopping")
	}
}

// sleep waits; false: the adapter is stopping.
func (a *Adapter) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a.stop:
		return false
	}
}
