package tool

import (
	"sync"
	"time"
)

// window is a sliding window over the last minute: the exact times of the calls
// in it, in a ring. A call that is refused takes no place.
type window struct {
	limit int
	now   func() time.Time

	mu    sync.Mutex
	times []time.Time
	next  int // the oldest, once the ring is full
}

func newWindow(limit int, now func() time.Time) *window {
	return &window{limit: limit, now: now}
}

// take says whether a call may go on, and if not, how long until one may.
// limit, when above 0 and smaller, narrows the window's own.
func (w *window) take(limit int) (wait time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if limit <= 0 || limit > w.limit {
		limit = w.limit
	}
	if limit <= 0 {
		return time.Minute, false
	}
	now := w.now()
	if n := len(w.times); n >= limit {
		// The call that was made limit calls ago must have left the window.
		at := w.times[(w.next+n-limit)%n]
		if age := now.Sub(at); age < time.Minute {
			return time.Minute - max(age, 0), false
		}
	}
	if len(w.times) < w.limit {
		w.times = append(w.times, now)
		return 0, true
	}
	w.times[w.next] = now
	w.next = (w.next + 1) % len(w.times)
	return 0, true
}
