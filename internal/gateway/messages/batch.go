package messages

import (
	"context"
	"runtime"
	"sync"

	"bulkhead/internal/adapter"
)

// Single sends of concurrent requests go to the adapter together: while
// inFlight batches are on their way, or many sends, others gather for the next one. Two
// small ones wait less for each other; of many each batch costs a sync of the disk.
const (
	inFlight   = 2
	many       = 16
	batchBytes = 2 << 20 // of bodies, so that a batch is one frame
)

type batcher struct {
	mu     sync.Mutex
	list   []single
	flying int // batches on their way
	air    int // sends in them
	last   int // sends in the one that set out last
	closed bool
}

type single struct {
	d      adapter.Draft
	result chan adapter.SendResult
}

var results = sync.Pool{New: func() any { return make(chan adapter.SendResult, 1) }}

// sendSingle waits for the adapter's answer, however long a runtime that left
// would have waited: see ask. While little is on its way, the
// caller takes the next one itself: no other goroutine has to be woken for it.
func (m *Messages) sendSingle(d adapter.Draft) adapter.SendResult {
	b := &m.batch
	s := single{d, results.Get().(chan adapter.SendResult)}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return adapter.SendResult{Err: errAway}
	}
	b.list = append(b.list, s)
	fly := b.flying == 0 || b.flying < inFlight && b.air < many
	if fly {
		b.flying++
	}
	// To let others go first wakes a thread, for nothing where there are none.
	several := b.last > 1
	b.mu.Unlock()
	if fly {
		if several {
			runtime.Gosched() // those that were woken with the caller get to join
		}
		m.fly()
	}
	r := <-s.result
	results.Put(s.result) // it gets one alone
	return r
}

// fly brings one batch to the adapter and answers it. What gathered meanwhile is
// another's: the caller has its own answer to give.
func (m *Messages) fly() {
	batch := m.batch.take()
	if len(batch) > 1 {
		runtime.Gosched() // those that the last one answered get to say so first
	}
	if len(batch) > 0 {
		drafts := make([]adapter.Draft, len(batch))
		for i := range batch {
			drafts[i] = batch[i].d
		}
		for i, r := range m.ask(context.Background(), drafts, false) {
			batch[i].result <- r
		}
	}
	if m.batch.land(len(batch)) {
		go m.fly()
	}
}

// take gives the next batch.
func (b *batcher) take() []single {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, size := 0, 0
	for n < len(b.list) && n < adapter.MaxBatch && (n == 0 || size+len(b.list[n].d.Body) <= batchBytes) {
		size += len(b.list[n].d.Body)
		n++
	}
	b.air += n
	if n > 0 {
		b.last = n
	}
	batch := b.list[:n:n]
	if b.list = b.list[n:]; len(b.list) == 0 {
		b.list = nil
	}
	return batch
}

// land ends a flight of n sends, unless there is a batch for the next one.
func (b *batcher) land(n int) (again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.air -= n
	if len(b.list) > 0 {
		return true
	}
	b.flying--
	return false
}

// close answers whoever came after the last batch. Flights end with the
// connection, which is closed before.
func (b *batcher) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.list {
		s.result <- adapter.SendResult{Err: errAway}
	}
	b.list = nil
}
