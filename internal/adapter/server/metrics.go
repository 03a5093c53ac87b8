package server

import (
	"context"
	"errors"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/store"
	"bulkhead/internal/deny"
	"bulkhead/internal/exposition"
)

// metrics is what the operator's verb `metrics` shows. Names are part of the
// contract (docs/contracts/messages.md).
type metrics struct {
	connections, requests, messages, denied *exposition.Numbers
	seconds                                 *exposition.Times
	store                                   Store
}

// prefix of all names.
const prefix = "bulkhead_adapter_"

// buckets go from a single fdatasync to a store that hangs; in seconds.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

func newMetrics(store Store) *metrics {
	return &metrics{
		store:       store,
		connections: exposition.NewNumbers(prefix+"connections", exposition.Gauge, "Open connections.", "agent"),
		requests:    exposition.NewNumbers(prefix+"requests_total", exposition.Counter, "Requests by what came of them: ok, denied or failed.", "agent", "outcome", "verb"),
		seconds:     exposition.NewTimes(prefix+"request_seconds", "Time of requests, without waits.", buckets, "verb"),
		messages:    exposition.NewNumbers(prefix+"messages_total", exposition.Counter, "Drafts by what came of them: stored, duplicate, or a reason's code.", "agent", "outcome"),
		denied:      exposition.NewNumbers(prefix+"connections_denied_total", exposition.Counter, "Connections that were refused.", "agent", "code"),
	}
}

// known keeps what a peer sends from making endless series.
func known(verb string) string {
	switch verb {
	case "send", "receive", "ack", "extend", "refuse", "thread", "replay", "channels", "policy", "queues", "tail", "operator_thread", "dead",
		"dead_replay", "dead_drop", "operator_send", "backup", "metrics", "request", "requests", "decide", "members", "missed":
		return verb
	}
	return "unknown"
}

func (m *metrics) request(verb, agent string, err error, took time.Duration) {
	verb = known(verb)
	m.requests.With(agent, outcome(err), verb).Add(1)
	if verb != "receive" && verb != "tail" { // their time is mostly that of the wait
		m.seconds.Observe(took, verb)
	}
}

func outcome(err error) string {
	var r *deny.Reason
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &r):
		return "denied"
	}
	return "failed"
}

func (m *metrics) sent(agent string, results []adapter.SendResult) {
	stored := 0
	defer func() {
		if stored > 0 {
			m.messages.With(agent, "stored").Add(int64(stored))
		}
	}()
	for i := range results {
		var what string
		var r *deny.Reason
		switch {
		case results[i].Err == nil && !results[i].Duplicate:
			stored++
			continue
		case errors.As(results[i].Err, &r):
			what = string(r.Code)
		case results[i].Err != nil:
			what = "failed"
		case results[i].Duplicate:
			what = "duplicate"
		}
		m.messages.With(agent, what).Add(1)
	}
}

// scrapeTimeout bounds how long a busy store may keep an operator waiting.
const scrapeTimeout = 10 * time.Second

// text is everything in the Prometheus text format.
func (m *metrics) text(ctx context.Context) string {
	var w exposition.Writer
	for _, n := range []*exposition.Numbers{m.connections, m.requests, m.messages, m.denied} {
		n.WriteTo(&w)
	}
	m.seconds.WriteTo(&w)
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	// A store that cannot be written still gives its counts.
	now, err := m.store.Metrics(ctx)
	one := func(name, kind, help string, v float64) {
		w.Family(prefix+name, kind, help)
		w.Sample(prefix+name, v)
	}
	if err == nil {
		one("last_message", exposition.Gauge, "Position of the last message of the team.", float64(now.Messages))
		one("body_bytes", exposition.Gauge, "Bytes of bodies kept in memory.", float64(now.Bytes))
		one("channel_requests_open", exposition.Gauge, "Requests for another membership of a channel that wait for an operator.", float64(now.Requests))
		one("channel_changes", exposition.Gauge, "Approved memberships that differ from the manifest.", float64(now.Changes))
	}
	queues(&w, now.Queues)
	for _, c := range []struct {
		name, help string
		v          int64
	}{
		{"acknowledged_total", "Deliveries that were acknowledged.", now.Acknowledged},
		{"retried_total", "Deliveries that come again.", now.Retried},
		{"leases_expired_total", "Leases that ended without an answer.", now.Expired},
		{"dead_lettered_total", "Deliveries that were given up.", now.Dead},
		{"evicted_total", "Of the dead letters, those that found no place in a queue.", now.Evicted},
		{"pruned_total", "Messages that went after their retention.", now.Pruned},
		{"transactions_failed_total", "Transactions that failed.", now.Failed},
	} {
		one(c.name, exposition.Counter, c.help, float64(c.v))
	}
	bounds := make([]float64, len(store.CommitBounds))
	for i, b := range store.CommitBounds {
		bounds[i] = b.Seconds()
	}
	counts := make([]uint64, len(now.Commit.Buckets))
	for i, n := range now.Commit.Buckets {
		counts[i] = uint64(n) // #nosec G115 -- a count
	}
	w.Family(prefix+"commit_seconds", exposition.Histogram, "Time of a transaction's writes with its fsync.")
	w.Buckets(prefix+"commit_seconds", bounds, counts, now.Commit.Sum.Seconds())
	return w.String()
}

// queues writes what each recipient's queue shows.
func queues(w *exposition.Writer, all []store.QueueState) {
	for _, g := range []struct {
		name, help string
		of         func(*store.QueueState) float64
	}{
		{"queue_messages", "Messages in a recipient's queue.", func(q *store.QueueState) float64 { return float64(q.Queued) }},
		{"queue_leased", "Messages under a lease.", func(q *store.QueueState) float64 { return float64(q.Leased) }},
		{"queue_retrying", "Messages that wait for another try.", func(q *store.QueueState) float64 { return float64(q.Retry) }},
		{"dead_letters", "Dead letters of a recipient.", func(q *store.QueueState) float64 { return float64(q.Dead) }},
		{"queue_oldest_seconds", "Age of the oldest message in a queue.", func(q *store.QueueState) float64 { return q.Oldest.Seconds() }},
		{"queue_bytes", "Bytes in a queue.", func(q *store.QueueState) float64 { return float64(q.Bytes) }},
	} {
		for i := range all {
			if i == 0 {
				w.Family(prefix+g.name, exposition.Gauge, g.help)
			}
			w.Sample(prefix+g.name, g.of(&all[i]), "agent", all[i].Agent)
		}
	}
}
