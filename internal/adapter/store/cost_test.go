package store

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Senders of the benchmarks share the recipients among them: a few each, as
// agents of a team have, and enough together that no queue overflows.
const (
	benchSenders = 64
	benchSinks   = 6 * benchSenders
)

func benchPolicy() Policy {
	p := Policy{Team: "bench", Agents: map[string]AgentPolicy{}}
	var to []string
	for i := range benchSinks {
		to = append(to, fmt.Sprint("sink", i))
		p.Agents[to[i]] = AgentPolicy{}
	}
	for s := range benchSenders {
		p.Agents[fmt.Sprint("sender", s)] = AgentPolicy{To: to, MaxBytes: 1 << 40}
	}
	return p
}

// BenchmarkSend measures the processor time of a durable message of 1 KiB,
// which stays comparable when others use the machine as well, and how many
// share a commit. TMPDIR is where its stores are. A
// queue that is full evicts, so b.N counts up to 190,000 messages.
func BenchmarkSend(b *testing.B) {
	body := json.RawMessage(`"` + strings.Repeat("x", 1022) + `"`)
	for _, batch := range []int{1, 16} {
		for _, senders := range []int{1, 6, benchSenders} {
			b.Run(fmt.Sprintf("senders=%d/batch=%d", senders, batch), func(b *testing.B) {
				a, err := Open(b.Context(), Config{Path: filepath.Join(b.TempDir(), "messages.db"), Policy: benchPolicy(), Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				begin, used := time.Now(), processorTime(b)
				b.ResetTimer()
				var wg sync.WaitGroup
				for s := range senders {
					wg.Go(func() {
						for i, end := 0, b.N*(s+1)/senders-b.N*s/senders; i < end; i += batch {
							ds := make([]Draft, min(batch, end-i))
							for j := range ds {
								ds[j] = Draft{IdempotencyKey: newKey().String(), To: fmt.Sprint("sink", s+senders*((i+j)%(benchSinks/senders))), Type: "note", Body: body}
							}
							for _, r := range a.Send(b.Context(), fmt.Sprint("sender", s), ds) {
								if r.Err != nil {
									b.Error(r.Err)
									return
								}
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64((processorTime(b)-used).Nanoseconds())/1e3/float64(b.N), "cpu-µs/msg")
				b.ReportMetric(float64(b.N)/time.Since(begin).Seconds(), "msgs/s")
				m, err := a.Metrics(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(b.N)/float64(m.Commit.Count), "msgs/commit")
				if err := a.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOpen measures the recovery of a store with 100,000 queued.
func BenchmarkOpen(b *testing.B) {
	const queued = 100_000
	dir := b.TempDir()
	open := func() *Adapter {
		a, err := Open(b.Context(), Config{Path: filepath.Join(dir, "messages.db"), Policy: benchPolicy(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		return a
	}
	a := open()
	body := json.RawMessage(`"` + strings.Repeat("x", 1022) + `"`)
	for n := 0; n < queued; {
		ds := make([]Draft, 200)
		for i := range ds {
			ds[i] = Draft{IdempotencyKey: newKey().String(), To: fmt.Sprint("sink", n/200%benchSenders+benchSenders*(i%(benchSinks/benchSenders))), Type: "note", Body: body}
		}
		for _, r := range a.Send(b.Context(), fmt.Sprint("sender", n/200%benchSenders), ds) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
		n += len(ds)
	}
	used := time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		if err := a.Close(); err != nil {
			b.Fatal(err)
		}
		from := processorTime(b)
		b.StartTimer()
		a = open()
		used += processorTime(b) - from
	}
	b.ReportMetric(used.Seconds()*1000/float64(b.N), "cpu-ms/op")
	if err := a.Close(); err != nil {
		b.Fatal(err)
	}
}
