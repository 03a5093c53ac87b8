package server

import (
	"context"

	"golang.org/x/sync/semaphore"

	"bulkhead/internal/wire"
)

// What one agent may have open, over all its connections.
const (
	maxRequests = 256               // that the store works on
	maxWaits    = 64                // long polls
	maxBytes    = 8 * wire.MaxFrame // of frames that the store works on
)

// share is the part of the adapter that one agent may use.
type share struct {
	requests, waits, bytes *semaphore.Weighted
}

func newShare() share {
	return share{semaphore.NewWeighted(maxRequests), semaphore.NewWeighted(maxWaits), semaphore.NewWeighted(maxBytes)}
}

// take waits for room for a request of n bytes. Before it does, full is called.
func (s share) take(ctx context.Context, n int, full func()) (give func(), err error) {
	for _, w := range []struct {
		of *semaphore.Weighted
		n  int64
	}{{s.bytes, int64(n)}, {s.requests, 1}} {
		if w.of.TryAcquire(w.n) {
			continue
		}
		full()
		if err := w.of.Acquire(ctx, w.n); err != nil {
			if w.of == s.requests {
				s.bytes.Release(int64(n))
			}
			return nil, err
		}
	}
	return func() {
		s.requests.Release(1)
		s.bytes.Release(int64(n))
	}, nil
}
