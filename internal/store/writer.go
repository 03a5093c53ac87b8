package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/tool"
)

// Bounds of what waits for the writer.
const (
	maxWaiting = 4096 // functions and records
	maxBatch   = 512  // of them in one transaction
	maxNotes   = 4096 // records of reads that are not on disk yet
)

// flushDelay leaves the other half of tool.NoteDelay to the disk.
const flushDelay = tool.NoteDelay / 2

// op is one thing for the writer: exactly one of view, update and record.
type op struct {
	view   func(*Tx) error
	update func(*Tx) error
	quota  int64 // of update's caller
	record *line
	err    error
	done   chan error // has room for one
}

// Update runs f in a transaction. When it returns nil, what f did is on disk,
// together with its records; when it returns an error, nothing of it is. f must
// not keep t, wait for anything or touch what another goroutine uses: it runs
// on a goroutine that serves everybody. Its error is given as it is; any
// other failure is a *deny.Reason. In a call of a tool it may use as much as the
// call's token allows ([tool.QuotaOf]).
func (s *Store) Update(ctx context.Context, f func(*Tx) error) error {
	return s.do(ctx, &op{update: f, quota: tool.Narrow(s.cfg.Quota, tool.QuotaOf(ctx).Memory)})
}

// View runs f on what is on disk now. f is bound like that of Update and must
// only read.
func (s *Store) View(ctx context.Context, f func(*Tx) error) error {
	return s.do(ctx, &op{view: f})
}

// do waits for its transaction however long the caller would: what it is about
// to do is bounded, and a call that was given up would be without its answer.
func (s *Store) do(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return unavailable("the gateway is stopping")
	case len(s.ops) >= maxWaiting:
		s.mu.Unlock()
		return unavailable("too many calls wait for the disk")
	}
	o.done = make(chan error, 1)
	s.ops = append(s.ops, o)
	lead := !s.led
	s.led = true
	s.mu.Unlock()
	if lead {
		s.round()
	}
	return <-o.done
}

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func unavailable(why string) *deny.Reason {
	r := tool.Refuse(deny.ToolUnavailable, "system.db", why, "try again; when it stays, run `bulkhead status` on the host: the gateway's disk may be full or failing")
	r.RetryAfter = 1
	return r
}

// take gives what the next transaction does. Notes wait for their time, unless
// something is written anyway.
func (s *Store) take(into []*op) (ops []*op, notes [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.ops), maxBatch)
	ops = append(into, s.ops[:n]...)
	rest := copy(s.ops, s.ops[n:])
	clear(s.ops[rest:])
	s.ops = s.ops[:rest]
	if s.due || slices.ContainsFunc(ops, func(o *op) bool { return o.view == nil }) {
		notes, s.notes = s.notes, nil
		s.due = false
	}
	return ops, notes
}

// round does one transaction, by who has the lead, and gives the lead back: to
// the writer when something has come meanwhile.
func (s *Store) round() {
	defer func() {
		if p := recover(); p != nil {
			// Whoever calls may survive a panic, and nobody would have the lead:
			// the gateway ends, as by one of the writer.
			go panic(fmt.Sprintf("%v\n%s", p, debug.Stack()))
			select {}
		}
	}()
	if s.w.many {
		// Those that were just answered get to ask again before the next commit.
		runtime.Gosched()
	}
	ops, notes := s.take(s.w.ops[:0])
	s.w.many = len(ops) > 1
	if s.batch(ops, notes) {
		s.lengthen()
	}
	clear(ops)
	s.w.ops = ops
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.led = s.ended || len(s.ops) > 0 || s.due && len(s.notes) > 0; s.led {
		tell(s.wake)
	}
}

// run is the writer: it has the notes written in time, and goes on when who led
// has its answer and others wait.
func (s *Store) run() {
	timer := time.NewTimer(0)
	<-timer.C
	defer timer.Stop()
	for {
		select {
		case <-s.wake: // the lead is ours
			s.round()
		case <-s.note:
			timer.Reset(flushDelay)
		case <-timer.C:
			s.flush()
		case <-s.stop:
			s.finish()
			return
		}
	}
}

// finish does what waits when the store closes: nothing comes any more.
func (s *Store) finish() {
	s.mu.Lock()
	s.ended, s.due = true, true
	led := s.led
	s.led = true // from now on, and never given back
	s.mu.Unlock()
	if led {
		<-s.wake
	}
	for more := true; more; {
		s.round()
		s.mu.Lock()
		more = len(s.ops) > 0
		s.mu.Unlock()
	}
}

// flush has the notes written now, by who has the lead.
func (s *Store) flush() {
	s.mu.Lock()
	s.due = true
	lead := !s.led
	s.led = true
	s.mu.Unlock()
	if lead {
		s.round()
	}
}

// writer is what belongs to who has the lead.
type writer struct {
	ops    []*op // of its round
	many   bool  // the round before had more than one
	db     *sqlite.Conn
	broken bool  // memory may differ from the database
	reopen bool  // the connection cannot be trusted
	used   int64 // bytes that count towards the quota
	spool  spool
	folds  folds

	commits int
	long    bool // nothing is to be added to the log
}

// batch does ops: first those that read, which are answered at once, then the
// others in one transaction, which it says was committed.
func (s *Store) batch(ops []*op, notes [][]byte) (committed bool) {
	err := s.mend()
	t := &Tx{store: s, db: s.w.db, now: s.cfg.Now(), used: s.w.used}
	writes := 0
	for _, o := range ops {
		switch {
		case o.view == nil:
			writes++
		case err != nil:
			o.done <- unavailable("the store cannot be read: " + err.Error())
		default:
			o.done <- outcome(guard(t, o.view))
		}
	}
	if writes == 0 && len(notes) == 0 {
		return false
	}
	if err == nil {
		err = s.write(t, ops, notes)
	}
	if err != nil {
		s.cfg.Log.Error("system.db cannot be written", "error", err, "effect", "what was asked for is refused; nothing that was answered is lost")
		s.w.broken = true
		s.w.reopen = s.w.reopen || !sqlite.Full(err)
		s.keep(notes)
	}
	for _, o := range ops {
		switch {
		case o.view != nil:
		case o.err != nil:
			o.done <- o.err
		case err != nil:
			o.done <- unavailable("it cannot be made durable: " + err.Error())
		default:
			o.done <- nil
		}
	}
	if err == nil {
		for _, f := range t.after {
			f()
		}
	}
	return err == nil
}

// write does the ops that change something, and commits.
func (s *Store) write(t *Tx, ops []*op, notes [][]byte) error {
	if _, err := t.db.Exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := s.fill(t, ops, notes)
	if err == nil {
		_, err = t.db.Exec("COMMIT")
	}
	if err != nil {
		_, _ = t.db.Exec("ROLLBACK") // SQLite may have done so itself
		return err
	}
	s.w.used = t.used
	if t.spool.released {
		s.w.folds.due = false
	}
	if s.w.spool.committed(t) {
		s.mu.Lock()
		close(s.fresh)
		s.fresh = make(chan struct{})
		s.mu.Unlock()
	}
	return nil
}

func (s *Store) fill(t *Tx, ops []*op, notes [][]byte) error {
	t.spool = s.w.spool.begin()
	for _, o := range ops {
		switch {
		case o.update != nil:
			var err error
			t.quota = o.quota
			if o.err, err = t.apart(o.update); err != nil {
				return err
			}
		case o.record != nil:
			if o.err = t.take(o.record); o.err != nil && !errors.As(o.err, new(*deny.Reason)) {
				return o.err
			}
		}
	}
	for _, n := range notes {
		if err := t.take(&line{text: n}); err != nil {
			return err
		}
	}
	return t.flush()
}

// apart runs f in a savepoint. failed is f's own failure, whose traces are
// gone; err one of the database, which ends the transaction for all.
func (t *Tx) apart(f func(*Tx) error) (failed, err error) {
	if _, err := t.db.Exec("SAVEPOINT one"); err != nil {
		return nil, err
	}
	used, after, spool := t.used, len(t.after), t.spool.spool
	t.lines = t.lines[:0]
	failed = guard(t, f)
	if failed == nil {
		failed = t.keepLines()
	}
	if failed != nil {
		t.used, t.after, t.spool.spool = used, t.after[:after], spool
		// When SQLite rolled everything back, there is no savepoint any more.
		if _, err := t.db.Exec("ROLLBACK TO one"); err != nil {
			return nil, errors.Join(failed, err)
		}
	}
	_, err = t.db.Exec("RELEASE one")
	return outcome(failed), err
}

// outcome makes what is no refusal one that the agent may see: a full disk is
// not a fault of ours.
func outcome(err error) error {
	if sqlite.Full(err) {
		return unavailable("the gateway's disk is full")
	}
	return err
}

// guard turns a panic of f into an error: it ends one call and not the gateway.
func guard(t *Tx, f func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f(t)
}

// mend makes the store usable again after a transaction failed.
func (s *Store) mend() error {
	if !s.w.broken {
		return nil
	}
	if s.w.reopen {
		// After a failed fsync the kernel may have forgotten pages of the log
		// that SQLite believes written. A checkpoint writes them anew, into
		// the database itself, before anything is built upon them.
		if s.w.db != nil {
			_ = s.w.db.Close() // it failed before
			s.w.db = nil
		}
		db, err := s.open()
		if err != nil {
			return err
		}
		if err := db.Query("PRAGMA wal_checkpoint(TRUNCATE)", func([]sqlite.Value) error { return nil }); err != nil {
			return errors.Join(err, db.Close())
		}
		s.w.db, s.w.reopen, s.w.long = db, false, false
	}
	if err := s.w.load(); err != nil {
		s.w.reopen = true
		return err
	}
	s.w.broken = false
	return nil
}

// load reads what memory holds of the database.
func (w *writer) load() (err error) {
	if w.used, err = w.db.Int("SELECT value FROM meta WHERE name = 'used'"); err != nil {
		return err
	}
	return w.spool.load(w.db)
}
