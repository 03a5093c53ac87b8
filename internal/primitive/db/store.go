package db

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"modernc.org/sqlite"

	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/sqlite/memcount"
)

// Bounds of an answer and of a statement.
const (
	MaxRows     = 10_000
	MaxAnswer   = 8 << 20 // bytes of JSON
	DefaultTime = 10 * time.Second
)

// readers is how many statements that only read run at once, beside one that writes.
const readers = 2

// Config is what an agent's database is kept with.
type Config struct {
	// Path is the database's file, in a folder that this gateway alone can
	// read and write. It is made when it is first used.
	Path string
	// Budget is shared with whatever else stores for the agent.
	Budget *storage.Budget
	// Time is how long a statement, or a transaction, may take; 0: DefaultTime.
	Time time.Duration
	Log  *slog.Logger // nil: nothing is logged
}

// Store is an agent's database. Its methods may be called concurrently; those
// that write wait for one another.
type Store struct {
	cfg Config

	write chan *conn // holds one: the connection, or nil before it is opened
	read  chan *conn // holds as many as there are readers, nil the same
	// pages is how many the file has as far as the budget knows. Whoever has
	// the writing connection may use it.
	pages int64

	mu     sync.Mutex
	closed bool
}

// Open counts what is there. The file is not made before it is needed, so that
// an agent without SQL costs nothing.
func Open(cfg Config) (*Store, error) {
	if cfg.Time == 0 {
		cfg.Time = DefaultTime
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if memcount.Err != nil {
		return nil, memcount.Err
	}
	s := &Store{cfg: cfg, write: make(chan *conn, 1), read: make(chan *conn, readers)}
	for range readers {
		s.read <- nil
	}
	if _, err := os.Lstat(cfg.Path); errors.Is(err, os.ErrNotExist) {
		s.write <- nil
		return s, nil
	}
	c, err := s.openWriter()
	if err != nil {
		return nil, err
	}
	s.write <- c
	return s, nil
}

// openWriter opens the connection that writes, and counts the file.
func (s *Store) openWriter() (*conn, error) {
	// As much faster as half the syncs, and SQLite's own choice where there is
	// fdatasync; see internal/adapter/store.
	_, _ = sqlite.Fdatasync(true)
	f, err := os.OpenFile(s.cfg.Path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the agent's database: %w", err)
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("the agent's database %s is not a file: %w", s.cfg.Path, err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("make the agent's database: %w", err)
	}
	c, err := connect(s.cfg.Path, writer)
	if err != nil {
		return nil, err
	}
	c.watch.walMost = max(64<<20, s.cfg.Budget.Limits().Bytes)
	if err := s.recount(c); err != nil {
		_ = c.close()
		return nil, err
	}
	return c, nil
}

const pageSize = 4096 // SQLite's own since 3.12, which files of ours are made with

// recount has the budget know the file's size.
func (s *Store) recount(c *conn) error {
	n, err := c.number("PRAGMA page_count")
	if err != nil {
		return err
	}
	s.cfg.Budget.Count((n-s.pages)*pageSize, 0)
	s.pages = n
	return nil
}

// Close closes the file. Calls that are running are waited for.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	for range readers {
		if c := <-s.read; c != nil {
			errs = append(errs, c.close())
		}
	}
	if c := <-s.write; c != nil {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}

// reading runs f with a connection that cannot write.
func (s *Store) reading(ctx context.Context, f func(*conn) error) error {
	c, err := s.lend(ctx, s.read)
	if err != nil {
		return err
	}
	if c == nil {
		// The file is made by who writes; a reader would make it without its size.
		if err := s.writing(ctx, func(*conn) error { return nil }); err != nil {
			s.read <- nil
			return err
		}
		if c, err = connect(s.cfg.Path, reader); err != nil {
			s.read <- nil
			return err
		}
	}
	defer func() { s.read <- c }()
	release := c.watch.during(ctx)
	defer release()
	return f(c)
}

// writing runs f with the connection that writes.
func (s *Store) writing(ctx context.Context, f func(*conn) error) error {
	c, err := s.lend(ctx, s.write)
	if err != nil {
		return err
	}
	if c == nil {
		if c, err = s.openWriter(); err != nil {
			s.write <- nil
			return err
		}
	}
	defer func() {
		if c.broken {
			s.cfg.Log.Error("the connection to an agent's database is given up", "closed", c.close())
			c = nil // the next call opens it anew, and counts
		}
		s.write <- c
	}()
	release := c.watch.during(ctx)
	defer release()
	return f(c)
}

func (s *Store) lend(ctx context.Context, from chan *conn) (*conn, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, errors.New("the agent's database is closed")
	}
	select {
	case c := <-from:
		return c, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other statements: %w", ctx.Err())
	}
}

// transaction runs f, all or nothing, with what the budget has left. When somebody may
// want back what it changes, what that needs is kept before it is done.
func (s *Store) transaction(ctx context.Context, c *conn, f func() error) (err error) {
	room, settle, err := s.cfg.Budget.Borrow(ctx)
	if err != nil {
		return err
	}
	before := s.pages
	defer func() {
		// What the file has become, whatever happened to the transaction.
		n, counted := c.number("PRAGMA page_count")
		if counted != nil {
			n, c.broken = before, true
			err = errors.Join(err, counted)
		}
		s.pages = n
		settle((n - before) * pageSize)
	}()
	// At least one page, or SQLite takes it for a question.
	most := min(max(before+room/pageSize, 1), 1<<31)
	if err := c.exec(fmt.Sprintf("PRAGMA max_page_count = %d", most)); err != nil {
		return err
	}
	if err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := kept(ctx, c, f); err != nil {
		if back := s.rollback(c); back != nil {
			return errors.Join(err, back)
		}
		return errors.Join(err, unchanged(ctx))
	}
	if err := c.exec("COMMIT"); err != nil {
		return errors.Join(err, s.rollback(c))
	}
	s.shorten(c)
	return nil
}

// rollback ends a transaction that SQLite may have ended itself.
func (s *Store) rollback(c *conn) error {
	c.watch.stopped.Store(int32(running)) // or the rollback would be stopped too
	if err := c.exec("ROLLBACK"); err != nil && !noTransaction(err) {
		c.broken = true // a transaction may still be open on it
		return err
	}
	return nil
}

func noTransaction(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code() == 1 // SQLITE_ERROR: "no transaction is active"
}

// shorten empties the log after it grew: SQLite uses it again from its
// beginning, but keeps its length.
func (s *Store) shorten(c *conn) {
	st, err := os.Stat(c.watch.wal)
	if err != nil || st.Size() < 4<<20 {
		return
	}
	if _, err := c.number("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		s.cfg.Log.Warn("the log of an agent's database could not be emptied", "error", err)
	}
}
