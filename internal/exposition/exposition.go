// Package exposition counts, and writes what it counted in the Prometheus text
// format (https://prometheus.io/docs/instrumenting/exposition_formats/).
//
// The client library of Prometheus does more, and costs every process of the
// program that links it two milliseconds and half a megabyte before main: as much
// as a tenth of the start of a gateway, which never counts anything (decision 102).
package exposition

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Kinds of a family.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// maxLabels is how many labels a family has at most.
const maxLabels = 3

// Writer gathers families of numbers. Its zero value is empty.
type Writer struct {
	b strings.Builder
}

// String gives the text.
func (w *Writer) String() string { return w.b.String() }

// Family begins one: its samples follow, and no other family's are among them.
func (w *Writer) Family(name, kind, help string) {
	w.b.WriteString("# HELP " + name + " " + helpEscape.Replace(help) + "\n# TYPE " + name + " " + kind + "\n")
}

// Sample writes one number of the family. labels are names and values in turns.
func (w *Writer) Sample(name string, value float64, labels ...string) {
	w.b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		w.b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		w.b.WriteString(labels[i] + `="` + labelEscape.Replace(labels[i+1]) + `"`)
	}
	if len(labels) > 1 {
		w.b.WriteByte('}')
	}
	w.b.WriteString(" " + number(value) + "\n")
}

// Buckets writes a histogram: bounds in seconds, one count for each and one for
// what was above all of them, none of which holds those below.
func (w *Writer) Buckets(name string, bounds []float64, counts []uint64, sum float64, labels ...string) {
	var all uint64
	for i, n := range counts {
		all += n
		bound := "+Inf"
		if i < len(bounds) {
			bound = number(bounds[i])
		}
		w.Sample(name+"_bucket", float64(all), append(slices.Clone(labels), "le", bound)...)
	}
	w.Sample(name+"_sum", sum, labels...)
	w.Sample(name+"_count", float64(all), labels...)
}

// number writes whole numbers as people do; times in seconds among them.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// What the format escapes.
var (
	helpEscape  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// key is the values of a series' labels.
type key [maxLabels]string

// Numbers is a family of counters or gauges, one for each set of values of its
// labels. Safe for concurrent use.
type Numbers struct {
	name, kind, help string
	labels           []string
	series           sync.Map // key -> *atomic.Int64
}

// NewNumbers makes a family with at most three labels.
func NewNumbers(name, kind, help string, labels ...string) *Numbers {
	if len(labels) > maxLabels {
		panic("exposition: " + name + " has too many labels") // a constant of the program
	}
	return &Numbers{name: name, kind: kind, help: help, labels: labels}
}

// With gives the number for these values of the labels, in their order.
func (n *Numbers) With(values ...string) *atomic.Int64 {
	return series(&n.series, values, func() *atomic.Int64 { return new(atomic.Int64) })
}

// WriteTo writes the family, nothing when it is empty.
func (n *Numbers) WriteTo(w *Writer) {
	for i, k := range sorted(&n.series) {
		if i == 0 {
			w.Family(n.name, n.kind, n.help)
		}
		v, _ := n.series.Load(k)
		w.Sample(n.name, float64(v.(*atomic.Int64).Load()), pairs(n.labels, k)...)
	}
}

// Times is a family of histograms of times. Safe for concurrent use.
type Times struct {
	name, help string
	labels     []string
	bounds     []float64 // seconds, ascending
	series     sync.Map  // key -> *times
}

type times struct {
	counts []atomic.Uint64 // one for each bound, and one above
	sum    atomic.Int64    // nanoseconds
}

// NewTimes makes a family with bounds in seconds, ascending.
func NewTimes(name, help string, bounds []float64, labels ...string) *Times {
	if len(labels) > maxLabels {
		panic("exposition: " + name + " has too many labels") // a constant of the program
	}
	return &Times{name: name, help: help, labels: labels, bounds: bounds}
}

// Observe counts one time.
func (t *Times) Observe(d time.Duration, values ...string) {
	s := series(&t.series, values, func() *times { return &times{counts: make([]atomic.Uint64, len(t.bounds)+1)} })
	i, _ := slices.BinarySearch(t.bounds, d.Seconds())
	s.counts[i].Add(1)
	s.sum.Add(int64(d))
}

// WriteTo writes the family, nothing when it is empty.
func (t *Times) WriteTo(w *Writer) {
	for i, k := range sorted(&t.series) {
		if i == 0 {
			w.Family(t.name, Histogram, t.help)
		}
		v, _ := t.series.Load(k)
		s := v.(*times)
		counts := make([]uint64, len(s.counts))
		for j := range s.counts {
			counts[j] = s.counts[j].Load()
		}
		w.Buckets(t.name, t.bounds, counts, time.Duration(s.sum.Load()).Seconds(), pairs(t.labels, k)...)
	}
}

// series finds what belongs to the values, or makes it.
func series[T any](m *sync.Map, values []string, fresh func() *T) *T {
	var k key
	copy(k[:], values)
	if v, ok := m.Load(k); ok {
		return v.(*T)
	}
	v, _ := m.LoadOrStore(k, fresh())
	return v.(*T)
}

func sorted(m *sync.Map) []key {
	var out []key
	m.Range(func(k, _ any) bool {
		out = append(out, k.(key))
		return true
	})
	slices.SortFunc(out, func(a, b key) int { return slices.Compare(a[:], b[:]) })
	return out
}

func pairs(names []string, values key) []string {
	out := make([]string, 0, 2*len(names))
	for i, n := range names {
		out = append(out, n, values[i])
	}
	return out
}
