package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

// Syncer is a store that tells how long each fdatasync of a commit took.
type Syncer interface {
	OnSync(func(took time.Duration))
}

// metrics is what the operator's verb `metrics` shows. Names are part of the
// contract (docs/contracts/messages.md).
type metrics struct {
	registry    *prometheus.Registry
	connections *prometheus.GaugeVec
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	messages    *prometheus.CounterVec
	denied      *prometheus.CounterVec
	sync        prometheus.Histogram
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
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "bulkhead_adapter_sync_seconds", Help: "Time of the fdatasync of a commit.", Buckets: buckets,
		}),
	}
	m.registry.MustRegister(m.connections, m.requests, m.seconds, m.messages, m.denied, m.sync, (*queueMetrics)(m))
	if s, ok := store.(Syncer); ok {
		s.OnSync(func(took time.Duration) { m.sync.Observe(took.Seconds()) })
	}
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
	for i := range results {
		what := "stored"
		var r *deny.Reason
		switch {
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

// queueMetrics reads the queues when they are asked for.
type queueMetrics metrics

var (
	queued = prometheus.NewDesc("bulkhead_adapter_queue_messages", "Messages in a recipient's queue.", []string{"agent"}, nil)
	leased = prometheus.NewDesc("bulkhead_adapter_queue_leased", "Messages under a lease.", []string{"agent"}, nil)
	retry  = prometheus.NewDesc("bulkhead_adapter_queue_retrying", "Messages that wait for another try.", []string{"agent"}, nil)
	dead   = prometheus.NewDesc("bulkhead_adapter_dead_letters", "Dead letters of a recipient.", []string{"agent"}, nil)
	oldest = prometheus.NewDesc("bulkhead_adapter_queue_oldest_seconds", "Age of the oldest message in a queue.", []string{"agent"}, nil)
	volume = prometheus.NewDesc("bulkhead_adapter_queue_bytes", "Bytes in a queue.", []string{"agent"}, nil)
)

// scrapeTimeout bounds how long a busy store may keep an operator waiting.
const scrapeTimeout = 10 * time.Second

// Describe names what Collect gives.
func (q *queueMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queued, leased, retry, dead, oldest, volume} {
		to <- d
	}
}

// Collect asks the store.
func (q *queueMetrics) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	all, err := q.store.Queues(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(queued, err)
		return
	}
	for _, s := range all {
		for d, v := range map[*prometheus.Desc]float64{
			queued: float64(s.Queued), leased: float64(s.Leased), retry: float64(s.Retry), dead: float64(s.Dead),
			oldest: s.Oldest.Seconds(), volume: float64(s.Bytes),
		} {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.Agent)
		}
	}
}
