package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/store"
	"bulkhead/internal/deny"
)

// metrics is what the operator's verb `metrics` shows. Names are part of the
// contract (docs/contracts/messages.md).
type metrics struct {
	registry    *prometheus.Registry
	connections *prometheus.GaugeVec
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	messages    *prometheus.CounterVec
	denied      *prometheus.CounterVec
	store       Store
}

// buckets go from a single fdatasync to a store that hangs.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

func newMetrics(store Store) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(), store: store,
		connections: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "bulkhead_adapter_connections", Help: "Open connections.",
		}, []string{"agent"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bulkhead_adapter_requests_total", Help: "Requests by what came of them: ok, denied or failed.",
		}, []string{"agent", "verb", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bulkhead_adapter_request_seconds", Help: "Time of requests, without waits.", Buckets: buckets,
		}, []string{"verb"}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bulkhead_adapter_messages_total", Help: "Drafts by what came of them: stored, duplicate, or a reason's code.",
		}, []string{"agent", "outcome"}),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bulkhead_adapter_connections_denied_total", Help: "Connections that were refused.",
		}, []string{"agent", "code"}),
	}
	m.registry.MustRegister(m.connections, m.requests, m.seconds, m.messages, m.denied, (*storeMetrics)(m))
	return m
}

// known keeps what a peer sends from making endless series.
func known(verb string) string {
	switch verb {
	case "send", "receive", "ack", "extend", "refuse", "thread", "replay", "channels", "policy", "queues", "tail", "operator_thread", "dead",
		"dead_replay", "dead_drop", "operator_send", "backup", "metrics":
		return verb
	}
	return "unknown"
}

func (m *metrics) request(verb, agent string, err error, took time.Duration) {
	verb = known(verb)
	m.requests.WithLabelValues(agent, verb, outcome(err)).Inc()
	if verb != "receive" && verb != "tail" { // their time is mostly that of the wait
		m.seconds.WithLabelValues(verb).Observe(took.Seconds())
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
			m.messages.WithLabelValues(agent, "stored").Add(float64(stored))
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
		m.messages.WithLabelValues(agent, what).Inc()
	}
}

// text is everything in the Prometheus text format.
func (m *metrics) text(context.Context) (string, error) {
	all, err := m.registry.Gather()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range all {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// storeMetrics asks the store when it is asked.
type storeMetrics metrics

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("bulkhead_adapter_"+name, help, labels, nil)
}

// What a queue shows.
var (
	queued = desc("queue_messages", "Messages in a recipient's queue.", "agent")
	leased = desc("queue_leased", "Messages under a lease.", "agent")
	retry  = desc("queue_retrying", "Messages that wait for another try.", "agent")
	dead   = desc("dead_letters", "Dead letters of a recipient.", "agent")
	oldest = desc("queue_oldest_seconds", "Age of the oldest message in a queue.", "agent")
	volume = desc("queue_bytes", "Bytes in a queue.", "agent")
)

// What the store shows.
var (
	commits      = desc("commit_seconds", "Time of a transaction's writes with its fsync.")
	position     = desc("last_message", "Position of the last message of the team.")
	memory       = desc("body_bytes", "Bytes of bodies kept in memory.")
	acknowledged = desc("acknowledged_total", "Deliveries that were acknowledged.")
	retried      = desc("retried_total", "Deliveries that come again.")
	expired      = desc("leases_expired_total", "Leases that ended without an answer.")
	died         = desc("dead_lettered_total", "Deliveries that were given up.")
	evicted      = desc("evicted_total", "Of the dead letters, those that found no place in a queue.")
	pruned       = desc("pruned_total", "Messages that went after their retention.")
	failed       = desc("transactions_failed_total", "Transactions that failed.")
)

// scrapeTimeout bounds how long a busy store may keep an operator waiting.
const scrapeTimeout = 10 * time.Second

// Describe names what Collect gives.
func (q *storeMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		queued, leased, retry, dead, oldest, volume, commits, position, memory, acknowledged, retried, expired, died, evicted, pruned, failed,
	} {
		to <- d
	}
}

// Collect asks the store. One that cannot be written still gives its counts.
func (q *storeMetrics) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	m, err := q.store.Metrics(ctx)
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if err == nil {
		gauge(position, float64(m.Messages))
		gauge(memory, float64(m.Bytes))
	}
	for _, s := range m.Queues {
		gauge(queued, float64(s.Queued), s.Agent)
		gauge(leased, float64(s.Leased), s.Agent)
		gauge(retry, float64(s.Retry), s.Agent)
		gauge(dead, float64(s.Dead), s.Agent)
		gauge(oldest, s.Oldest.Seconds(), s.Agent)
		gauge(volume, float64(s.Bytes), s.Agent)
	}
	for d, v := range map[*prometheus.Desc]int64{
		acknowledged: m.Acknowledged, retried: m.Retried, expired: m.Expired, died: m.Dead, evicted: m.Evicted, pruned: m.Pruned, failed: m.Failed,
	} {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	up := map[float64]uint64{}
	var sum uint64
	for i, bound := range store.CommitBounds {
		sum += uint64(m.Commit.Buckets[i]) // #nosec G115 -- a count
		up[bound.Seconds()] = sum
	}
	to <- prometheus.MustNewConstHistogram(commits, uint64(m.Commit.Count), m.Commit.Sum.Seconds(), up) // #nosec G115 -- a count
}
