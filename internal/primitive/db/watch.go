package db

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// cause is why a running statement was stopped.
type cause int32

const (
	running   cause = iota
	ended           // the context: time, or the caller is gone
	hungry          // memory
	logFilled       // the write-ahead log of this transaction
)

// watch stops statements of one connection.
//
// The driver's own way, a context, is not enough: it is in force until the
// first row, and not while later ones are computed. So the driver is given
// contexts that never end, and leaves SQLite's progress handler to this.
type watch struct {
	db  uintptr // the sqlite3*
	wal string  // the log's file
	// walMost is how large the log may be.
	walMost int64

	stopped atomic.Int32 // a cause
	calls   int          // of progress, in the goroutine that runs the statement

	// changes hears of each row that a statement changes; nil: nobody wants them back.
	changes *changes
}

// opcodes between two calls of progress: tens of microseconds, and not more
// memory than lies between heapStatement and heapHard.
const opcodes = 250

// watches has the watch of each sqlite3*, for the callback, which can hold no Go pointer.
var watches sync.Map

// start has the connection watched from now on.
func (w *watch) start(tls *libc.TLS) {
	watches.Store(w.db, w)
	sqlite3.Xsqlite3_progress_handler(tls, w.db, opcodes, callback(progress), w.db)
}

func (w *watch) end() { watches.Delete(w.db) }

// during has ctx stop whatever runs until release is called.
func (w *watch) during(ctx context.Context) (release func()) {
	w.stopped.Store(int32(running))
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		w.stopped.CompareAndSwap(int32(running), int32(ended))
		// For an opcode that takes long, as counting a table does: it asks for
		// interrupts and not for progress. SQLite allows this call from another
		// thread while the connection is open.
		tls := libc.NewTLS()
		sqlite3.Xsqlite3_interrupt(tls, w.db)
		tls.Close()
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// cause says why a statement was interrupted.
func (w *watch) cause() cause { return cause(w.stopped.Load()) }

// progress is called by SQLite; other than 0 stops the statement.
func progress(tls *libc.TLS, db uintptr) int32 {
	v, ok := watches.Load(db)
	if !ok {
		return 1 // nobody watches: stop
	}
	w, ok := v.(*watch)
	if !ok || w.stopped.Load() != int32(running) {
		return 1
	}
	if sqlite3.Xsqlite3_memory_used(tls) > heapStatement {
		w.stopped.CompareAndSwap(int32(running), int32(hungry))
		return 1
	}
	// The log grows by pages, so it need not be looked at each time.
	if w.calls++; w.calls%128 == 0 {
		if st, err := os.Stat(w.wal); err == nil && st.Size() > w.walMost {
			w.stopped.CompareAndSwap(int32(running), int32(logFilled))
			return 1
		}
	}
	return 0
}

// callback gives a function as SQLite, translated to Go, calls it: by the
// address of its closure, which for a declared function is in read-only data
// (https://golang.org/s/go11func). The driver does the same for its own.
func callback[F any](f F) uintptr {
	return *(*uintptr)(unsafe.Pointer(&struct{ f F }{f})) // #nosec G103 -- as above
}
