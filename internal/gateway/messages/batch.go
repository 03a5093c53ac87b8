package messages

import (
	"context"
	"sync"

	"bulkhead/internal/adapter"
)

// Single sends of concurrent requests go to the adapter together: while
// inFlight batches are on their way, others gather for the next one.
const (
	inFlight   = 2
	batchBytes = 2 << 20 // of bodies, so that a batch is one frame
)

type batcher struct {
	kick chan struct{}

	mu     sync.Mutex
	list   []single
	closed bool
}

type single struct {
	d      adapter.Draft
	result chan adapter.SendResult
}

func (b *batcher) init() { b.kick = make(chan struct{}, inFlight) }

// send waits for the adapter's answer, however long a runtime that left would
// have waited: see ask.
func (b *batcher) send(_ context.Context, d adapter.Draft) adapter.SendResult {
	s := single{d, make(chan adapter.SendResult, 1)}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return adapter.SendResult{Err: errAway}
	}
	b.list = append(b.list, s)
	b.mu.Unlock()
	b.wake()
	return <-s.result
}

func (b *batcher) wake() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// take gives the next batch, and whether more wait.
func (b *batcher) take() (batch []single, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, size := 0, 0
	for n < len(b.list) && n < adapter.MaxBatch && (n == 0 || size+len(b.list[n].d.Body) <= batchBytes) {
		size += len(b.list[n].d.Body)
		n++
	}
	batch = b.list[:n:n]
	if b.list = b.list[n:]; len(b.list) == 0 {
		b.list = nil
	}
	return batch, len(b.list) > 0
}

// close answers whoever came after the last batch.
func (b *batcher) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.list {
		s.result <- adapter.SendResult{Err: errAway}
	}
	b.list = nil
}

func (m *Messages) runBatches(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.batch.kick:
		}
		for more := true; more; {
			var batch []single
			if batch, more = m.batch.take(); len(batch) == 0 {
				break
			}
			drafts := make([]adapter.Draft, len(batch))
			for i := range batch {
				drafts[i] = batch[i].d
			}
			for i, r := range m.ask(ctx, drafts) {
				batch[i].result <- r
			}
		}
	}
}
