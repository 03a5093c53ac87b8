package store

import (
	"context"
	"time"
)

// Metrics is a snapshot of what the adapter does, for whoever serves it.
type Metrics struct {
	Counts
	Queues   []QueueState `json:"queues"`
	Messages int64        `json:"messages"` // the position of the last one
	Bytes    int64        `json:"bytes"`    // of bodies kept in memory
	Requests int          `json:"requests"` // for another membership, that wait for an operator
	Changes  int          `json:"changes"`  // approved memberships beside the manifest
}

// Counts are since the adapter was opened.
type Counts struct {
	Sent         int64     `json:"sent"`
	Duplicates   int64     `json:"duplicates"`
	Refused      int64     `json:"refused"` // drafts, whatever the reason
	Leased       int64     `json:"leased"`
	Acknowledged int64     `json:"acknowledged"`
	Retried      int64     `json:"retried"`
	Expired      int64     `json:"expired"` // leases
	Dead         int64     `json:"dead_letters"`
	Evicted      int64     `json:"evicted"` // of the dead letters, those that found no place
	Pruned       int64     `json:"pruned"`  // messages after their retention
	Failed       int64     `json:"failed"`  // transactions
	Commit       Histogram `json:"commit"`  // time of a transaction's writes with its fsync
}

// CommitBounds are the upper bounds of the histogram's buckets; a last bucket
// is for what took longer.
var CommitBounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second,
}

// Histogram counts durations, each in one bucket.
type Histogram struct {
	Buckets [len(CommitBounds) + 1]int64 `json:"buckets"`
	Sum     time.Duration                `json:"sum_ns"`
	Count   int64                        `json:"count"`
}

func (h *Histogram) observe(d time.Duration) {
	i := 0
	for i < len(CommitBounds) && d > CommitBounds[i] {
		i++
	}
	h.Buckets[i]++
	h.Sum += d
	h.Count++
}

// publish makes the counts readable beside the writer.
func (a *Adapter) publish() {
	counts := a.core.counts
	a.counts.Store(&counts)
}

// Metrics reads everything at once. While the store cannot be written it gives
// the counts alone, with the error.
func (a *Adapter) Metrics(ctx context.Context) (Metrics, error) {
	m := Metrics{Counts: *a.counts.Load()}
	var got Metrics
	err := a.do(ctx, &op{cost: 1, run: func(t *txn) {
		got = Metrics{Counts: t.counts, Queues: t.queueStates(t.wall), Messages: t.lastID.message, Bytes: t.cached, Requests: len(t.requests), Changes: len(t.changes)}
	}})
	if err != nil {
		return m, err
	}
	return got, nil
}
