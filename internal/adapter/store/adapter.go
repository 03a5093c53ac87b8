package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config says what to open. Path and Policy are needed.
type Config struct {
	Path   string // of the database; made when it is not there
	Policy Policy
	// Clock gives the wall clock, for timestamps; nil: time.Now. Leases and
	// retries go by the monotonic clock.
	Clock func() time.Time
	Log   *slog.Logger // nil: slog.Default
	// Retention is how long messages are kept after their last delivery
	// ended; 0: 30 days. Contracts are kept for ever.
	Retention time.Duration

	dialect *dialect // tests only
}

func (c *Config) setDefaults() error {
	if c.Path == "" {
		return errors.New("the path of the database is needed")
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Retention == 0 {
		c.Retention = 30 * 24 * time.Hour
	}
	if c.dialect == nil {
		d := pureGo()
		c.dialect = &d
	}
	return checkPolicy(&c.Policy)
}

// Adapter is an open message store. It implements [Service] and [Operator],
// and may be used by many goroutines at once.
type Adapter struct {
	path    string
	clock   func() time.Time
	log     *slog.Logger
	keep    time.Duration
	dialect dialect
	start   time.Time
	lock    *os.File

	intake  *intake
	stop    chan struct{} // closed: the writer ends when nothing waits
	closed  chan struct{} // closed: nobody is answered any more
	others  sync.WaitGroup
	readers chan *conn
	once    sync.Once
	counts  atomic.Pointer[Counts]
	policy  atomic.Pointer[rules]

	turn     sync.Mutex // to write; guards what follows
	core     *core
	manifest Policy        // the last that was set and is in force
	broken   bool          // memory is not what is in the database
	reopen   bool          // nor is the connection to be trusted
	ops      []*op         // of the transaction at work
	several  bool          // things were asked for in the last one
	alarm    time.Duration // when the writer wakes by itself, on the monotonic clock
}

var (
	_ Service  = (*Adapter)(nil)
	_ Operator = (*Adapter)(nil)
)

const readerCount = 2

// Open opens the message store at c.Path, checks it and brings it to the
// newest schema. It fails when another process has it open, or when the check
// finds damage: [Repair] then salvages what can be read.
func Open(ctx context.Context, c Config) (*Adapter, error) {
	if err := c.setDefaults(); err != nil {
		return nil, fmt.Errorf("message store: %w", err)
	}
	a := &Adapter{
		path: c.Path, clock: c.Clock, log: c.Log, keep: c.Retention, dialect: *c.dialect, start: time.Now(),
		intake: newIntake(), stop: make(chan struct{}), closed: make(chan struct{}), readers: make(chan *conn, readerCount),
	}
	var err error
	if a.lock, err = lockStore(c.Path); err != nil {
		return nil, err
	}
	if err := a.open(ctx, clonePolicy(&c.Policy)); err != nil {
		_ = a.lock.Close()
		return nil, fmt.Errorf("message store %s: %w", c.Path, err)
	}
	s, older := a.core.seen, len(a.core.seen.segments)-1
	a.others.Go(a.write)
	a.others.Go(a.tend)
	a.others.Go(func() { a.remember(s, older) })
	if err := a.do(ctx, &op{cost: 1, run: func(t *txn) { a.follow(t) }}); err != nil {
		// Nothing of it is in force; the next start or manifest does it.
		c.Log.Error("what the manifest has overtaken could not be written down", "error", err)
	}
	return a, nil
}

func (a *Adapter) open(ctx context.Context, p Policy) error {
	if err := private(a.path); err != nil {
		return err
	}
	db, err := a.dialect.ready(a.path, func(err error) {
		a.log.Warn("the message store is slower than it could be", "error", err)
	})
	if err != nil {
		return err
	}
	for i := 0; i < readerCount && err == nil && !a.dialect.solo; i++ {
		var r *conn
		if r, err = a.dialect.reader(a.path); err == nil {
			a.readers <- r
		}
	}
	if err == nil {
		err = a.checkAndLoad(ctx, db, p)
	}
	if err != nil {
		return errors.Join(err, db.close(), a.closeReaders())
	}
	a.manifest = p
	a.inForce()
	a.publish()
	return nil
}

// checkAndLoad reads all of the database to find damage, and what memory needs
// of it: at the same time, where there is a second connection. Nobody is
// served before both have ended well.
func (a *Adapter) checkAndLoad(ctx context.Context, db *conn, p Policy) error {
	read := func() (err error) {
		if a.core, err = load(db, a.log, p, a.clock(), a.mono()); err == nil {
			err = a.core.loadSeen()
		}
		return err
	}
	if a.dialect.solo {
		if err := checkIntegrity(ctx, db); err != nil {
			return err
		}
		return read()
	}
	r := <-a.readers
	found := make(chan error)
	go func() { found <- checkIntegrity(ctx, r) }()
	err := read()
	damage := <-found
	a.readers <- r
	if damage != nil { // says more than what reading damage gave
		return damage
	}
	return err
}

func (a *Adapter) mono() time.Duration { return time.Since(a.start) }

// Close answers what was asked already, and closes the store.
func (a *Adapter) Close() (err error) {
	a.once.Do(func() {
		a.intake.close()
		close(a.stop)
		close(a.closed)
		a.others.Wait()
		a.turn.Lock() // nobody has anything to commit any more
		defer a.turn.Unlock()
		if a.core.db != nil {
			err = a.core.db.close()
		}
		err = errors.Join(err, a.closeReaders(), a.lock.Close())
	})
	return err
}

func (a *Adapter) closeReaders() error {
	var errs []error
	for {
		select {
		case r := <-a.readers:
			errs = append(errs, r.close())
		default:
			return errors.Join(errs...)
		}
	}
}

// lockStore keeps a second adapter out. The lock is a file of its own,
// because closing any descriptor of the database ends SQLite's locks on it.
func lockStore(path string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Clean(path)+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the message store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("the message store %s is in use by another process (%w): stop that adapter first", path, err)
	}
	return f, nil
}

// private makes a file that nobody else may read, when there is none. SQLite
// takes an empty one for a new database and gives its log the same mode.
func private(path string) error {
	f, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
