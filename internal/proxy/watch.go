package proxy

import (
	"errors"
	"os"
	"sync"
	"time"
)

// watch reads from a client that waits for its answer: one that leaves calls
// its request off. What it says meanwhile is of its next request.
type watch struct {
	done chan struct{} // closed when it reads no more
	n    int
	err  error

	mu   sync.Mutex
	gone func() // what ends the exchange; nil: nothing yet
	left bool   // the client has
}

// onGone says what ends the exchange from now on.
func (w *watch) onGone(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone = f; w.left && f != nil {
		f()
	}
}

// watchClient begins to watch, unless there is no room for what the client may
// say. gone is called when it leaves.
func (x *exchange) watchClient(gone func()) {
	if x.watch != nil {
		x.watch.onGone(gone)
		return
	}
	if len(x.ahead) == 0 {
		return
	}
	_ = x.c.SetReadDeadline(time.Time{})
	w := &watch{done: make(chan struct{}), gone: gone}
	x.watch = w
	go func() { // ends by unwatch, or by what the client does
		defer close(w.done)
		w.n, w.err = x.c.read(x.ahead)
		if w.err == nil || errors.Is(w.err, os.ErrDeadlineExceeded) {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.left = true; w.gone != nil {
			w.gone()
		}
	}()
}

// gone says whether the client is known to have left.
func (x *exchange) gone() bool {
	if x.watch == nil {
		return false
	}
	x.watch.mu.Lock()
	defer x.watch.mu.Unlock()
	return x.watch.left
}

// unwatch ends watching and says whether the client is still there. It may be
// called again.
func (x *exchange) unwatch() bool {
	w := x.watch
	if w == nil {
		return true
	}
	w.onGone(nil)
	_ = x.c.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	x.read = w.n
	return w.err == nil || errors.Is(w.err, os.ErrDeadlineExceeded)
}
