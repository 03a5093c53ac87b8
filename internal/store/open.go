package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/sqlite"
)

// Defaults of a Config.
const (
	DefaultQuota = 100 << 20
	DefaultSpool = 16 << 20
)

// room is what the database may take beside the agent's own data, whose pages
// and indexes may take as much again as is counted.
const room = 8 << 20

const pageSize = 4096

// applicationID marks the file ("BkSy"), so that no other database is taken for one.
const applicationID = 0x426b5379

// ErrDamaged is what Open returns when the integrity check found damage.
var ErrDamaged = errors.New("system.db is damaged")

// Config says what to open.
type Config struct {
	Path string
	// Quota bounds what [Tx.Charge] counts, in bytes; 0: DefaultQuota.
	Quota int64
	// Spool bounds the records that wait for the audit, in bytes; 0: DefaultSpool.
	Spool int64
	// Audited says that somebody takes records off the spool. When it is full,
	// effects are refused; without a reader its oldest records give way.
	Audited bool
	Log     *slog.Logger     // nil: nothing is logged
	Now     func() time.Time // for tests; nil: time.Now
}

func (c *Config) setDefaults() {
	if c.Quota == 0 {
		c.Quota = DefaultQuota
	}
	if c.Spool == 0 {
		c.Spool = DefaultSpool
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Store is an open system.db. Its methods may be called concurrently.
type Store struct {
	cfg  Config
	wake chan struct{} // has a token when the lead was given to the writer
	note chan struct{} // has a token when the first note waits
	stop chan struct{}
	once sync.Once
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	led    bool // somebody does transactions: a caller, or the writer
	due    bool // the notes' time has come
	ended  bool // the lead goes to the writer, and stays there
	ops    []*op
	notes  [][]byte
	fresh  chan struct{} // closed when the spool has grown
	expire []func(*Tx) (bool, error)
	spare  []func(*Tx) (bool, error) // what is let go of when there is no room

	w writer // of who has the lead
}

// Open opens the store, makes it when it is not there, and begins to serve it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg.setDefaults()
	s := &Store{
		cfg: cfg, wake: make(chan struct{}, 1), note: make(chan struct{}, 1), stop: make(chan struct{}), fresh: make(chan struct{}),
	}
	db, err := s.open()
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, db); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", cfg.Path, err), db.Close())
	}
	s.w.db = db
	if err := s.w.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", cfg.Path, err), db.Close())
	}
	s.work.Go(s.run)
	s.work.Go(s.sweep)
	return s, nil
}

func (s *Store) open() (*sqlite.Conn, error) {
	return sqlite.Open(
		s.cfg.Path,
		"PRAGMA locking_mode = EXCLUSIVE", // no shared memory, and no second gateway
		fmt.Sprintf("PRAGMA page_size = %d", pageSize),
		"PRAGMA journal_mode = WAL",
		"PRAGMA synchronous = FULL", // fsync of the log with every commit
		fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", checkpointPages),
		"PRAGMA journal_size_limit = 8388608",
		"PRAGMA cache_size = -1024", // KiB
		"PRAGMA temp_store = MEMORY",
		"PRAGMA foreign_keys = OFF",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cell_size_check = ON",
		fmt.Sprintf("PRAGMA max_page_count = %d", (2*s.cfg.Quota+s.cfg.Spool+room)/pageSize),
	)
}

// Close answers what waits, writes down what was noted, and ends.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.once.Do(func() { close(s.stop) })
	s.work.Wait()
	if s.w.db == nil {
		return nil
	}
	err := s.w.db.Close()
	s.w.db = nil
	return err
}

// schema is this package's own, by version; a released step is never changed.
var schema = [][]string{{
	`CREATE TABLE meta (
		name  TEXT PRIMARY KEY,
		value INTEGER NOT NULL
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE spool (
		last  INTEGER PRIMARY KEY, -- number of the last record in body
		first INTEGER NOT NULL,
		body  BLOB NOT NULL        -- JSON, one record a line
	) STRICT`,
	`CREATE TABLE counted (
		target  TEXT NOT NULL,
		verdict TEXT NOT NULL,
		code    TEXT NOT NULL,
		count   INTEGER NOT NULL,
		record  BLOB NOT NULL, -- the last one of them
		PRIMARY KEY (target, verdict, code)
	) STRICT, WITHOUT ROWID`,
}, {
	`CREATE TABLE list (name TEXT NOT NULL) STRICT`,
	`INSERT INTO list SELECT lower(hex(randomblob(16)))`,
}}

// prepare checks the database and brings it to the newest schema.
func prepare(ctx context.Context, db *sqlite.Conn) error {
	id, err := db.Int("PRAGMA application_id")
	if err != nil {
		return err
	}
	tables, err := db.Int("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if tables > 0 && id != applicationID {
		return fmt.Errorf("it is not a system.db: application_id %#x; move the file away", id)
	}
	if err := check(ctx, db); err != nil {
		return err
	}
	if tables == 0 {
		if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
			return err
		}
		for _, sql := range []string{
			fmt.Sprintf("PRAGMA application_id = %d", applicationID),
			"CREATE TABLE part (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID", "COMMIT",
		} {
			if _, err := db.Exec(sql); err != nil {
				return err
			}
		}
	}
	if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := migrate(db, "store", schema); err != nil {
		_, _ = db.Exec("ROLLBACK") // the first error says more
		return err
	}
	_, err = db.Exec("COMMIT")
	return err
}

// check reads all of the database.
func check(ctx context.Context, db *sqlite.Conn) error {
	var found []string
	err := db.Query("PRAGMA quick_check(20)", func(row []sqlite.Value) error {
		if s := sqlite.Text(row[0]); s != "ok" {
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

// migrate leads a part from the version that its tables have to the newest.
func migrate(db *sqlite.Conn, part string, steps [][]string) error {
	version, err := db.Int("SELECT version FROM part WHERE name = ?", part)
	if err != nil {
		return err
	}
	if version > int64(len(steps)) {
		return fmt.Errorf("the tables of %s have version %d, this program knows %d: run the newer program", part, version, len(steps))
	}
	for _, step := range steps[version:] {
		for _, sql := range step {
			if _, err := db.Exec(sql); err != nil {
				return fmt.Errorf("migrate %s from version %d: %w", part, version, err)
			}
		}
	}
	_, err = db.Exec("INSERT INTO part (name, version) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version", part, len(steps))
	return err
}

// Migrate makes the tables of a part of the program, or brings them up to date:
// steps lead from one version to the next. One that was released is never
// changed.
func (s *Store) Migrate(ctx context.Context, part string, steps [][]string) error {
	return s.Update(ctx, func(t *Tx) error { return migrate(t.db, part, steps) })
}
