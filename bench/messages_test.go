package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/store"
)

// The messages' bench calls the adapter itself, without sockets: what is
// measured is the store. Every send is on disk when it is answered.

const (
	sinks       = 384 // recipients, shared by the senders, so that no queue overflows
	bodySize    = 1024
	measureTime = 2 * time.Second
)

func crowd() adapter.Policy {
	p := adapter.Policy{Team: "bench", Agents: map[string]adapter.AgentPolicy{}}
	var to []string
	for i := range sinks {
		to = append(to, fmt.Sprint("sink", i))
		p.Agents[to[i]] = adapter.AgentPolicy{}
	}
	for i := range 64 {
		p.Agents[fmt.Sprint("sender", i)] = adapter.AgentPolicy{To: to, MaxBytes: 1 << 40}
	}
	return p
}

func body() json.RawMessage {
	return json.RawMessage(`"` + strings.Repeat("x", bodySize-2) + `"`)
}

var keys struct {
	sync.Mutex
	n uint64
}

func key() string {
	keys.Lock()
	defer keys.Unlock()
	keys.n++
	// As good as random ones: their order in the index is that of their hash.
	h := keys.n * 0x9e3779b97f4a7c15
	return fmt.Sprintf("%08x-%04x-4000-8000-%012x", h>>32, h>>16&0xffff, keys.n&0xffffffffffff)
}

func openStore(t *testing.T, path string) *store.Adapter {
	t.Helper()
	a, err := store.Open(t.Context(), store.Config{Path: path, Policy: crowd(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestMessagesDurableSends(t *testing.T) {
	wanted(t)
	appends(t)
	for _, batch := range []int{1, 16} {
		for _, senders := range []int{1, 6, 64} {
			a := openStore(t, filepath.Join(t.TempDir(), "messages.db"))
			var mu sync.Mutex
			var all []time.Duration
			sent := 0
			begin, used := time.Now(), cpu(t)
			var wg sync.WaitGroup
			for s := range senders {
				wg.Go(func() {
					var took []time.Duration
					n := 0
					for i := s; time.Since(begin) < measureTime && n < sinks*480/senders; i++ {
						ds := make([]adapter.Draft, batch)
						for j := range ds {
							ds[j] = adapter.Draft{IdempotencyKey: key(), To: fmt.Sprint("sink", s+senders*((i*batch+j)%(sinks/senders))), Type: "note", Body: body()}
						}
						start := time.Now()
						for _, r := range a.Send(context.Background(), fmt.Sprint("sender", s), ds) {
							if r.Err != nil {
								t.Error(r.Err)
								return
							}
						}
						took = append(took, time.Since(start))
						n += batch
					}
					mu.Lock()
					defer mu.Unlock()
					all, sent = append(all, took...), sent+n
				})
			}
			wg.Wait()
			rate := float64(sent) / time.Since(begin).Seconds()
			used = cpu(t) - used
			quantiles(t, fmt.Sprintf("%d senders, batch %d: %.0f/s, %v CPU each", senders, batch, rate, (used/time.Duration(max(sent, 1))).Round(time.Microsecond)), all)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	appends(t)
}

// cpu is the processor time of this process: what stays comparable on a busy machine.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// appends measures what the disk gives: append 1 KiB and fdatasync.
func appends(t *testing.T) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var took []time.Duration
	for begin := time.Now(); time.Since(begin) < measureTime/2; {
		start := time.Now()
		if _, err := f.Write(make([]byte, bodySize)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	quantiles(t, fmt.Sprintf("bare append and fdatasync: %.0f/s", float64(len(took))/(measureTime/2).Seconds()), took)
}

// TestMessagesEndToEnd measures from before a send until a waiting receiver has it.
func TestMessagesEndToEnd(t *testing.T) {
	wanted(t)
	a := openStore(t, filepath.Join(t.TempDir(), "messages.db"))
	defer a.Close()
	var took []time.Duration
	for range 500 {
		got := make(chan time.Time)
		go func() {
			ds, err := a.Receive(t.Context(), "sink0", adapter.ReceiveRequest{Wait: time.Minute})
			at := time.Now()
			if err != nil || len(ds) != 1 {
				t.Errorf("%d deliveries, %v", len(ds), err)
			} else {
				a.Ack(t.Context(), "sink0", []string{ds[0].Lease})
			}
			got <- at
		}()
		time.Sleep(time.Millisecond)
		start := time.Now()
		a.Send(t.Context(), "sender0", []adapter.Draft{{IdempotencyKey: key(), To: "sink0", Type: "note", Body: body()}})
		took = append(took, (<-got).Sub(start))
	}
	quantiles(t, "end to end to a waiting receiver", took)
}

// TestMessagesRecovery opens a store with 100,000 messages queued.
func TestMessagesRecovery(t *testing.T) {
	wanted(t)
	const queued = 100_000
	path := filepath.Join(t.TempDir(), "messages.db")
	a := openStore(t, path)
	for n := 0; n < queued; {
		ds := make([]adapter.Draft, 250)
		for i := range ds {
			ds[i] = adapter.Draft{IdempotencyKey: key(), To: fmt.Sprint("sink", (n+i)%sinks), Type: "note", Body: body()}
		}
		for _, r := range a.Send(t.Context(), "sender0", ds) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		n += len(ds)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range 5 {
		start, used := time.Now(), cpu(t)
		a := openStore(t, path)
		took = append(took, time.Since(start))
		t.Logf("opened in %v, %v CPU", took[len(took)-1].Round(time.Millisecond), (cpu(t) - used).Round(time.Millisecond))
		qs, err := a.Queues(t.Context())
		total := 0
		for _, q := range qs {
			total += q.Queued
		}
		if err != nil || total != queued {
			t.Fatalf("%d queued, %v", total, err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	quantiles(t, "open with 100,000 queued", took)
}

// TestMessagesUnderAFlood measures what two agents that write to each other
// notice while a third sends as much as it can: from before a send until it is
// on disk, and until its recipient, who waits, has it. Without the flood and
// with it by turns.
func TestMessagesUnderAFlood(t *testing.T) {
	wanted(t)
	const rounds, pings, flooders, batch = 3, 150, 8, 16
	a := openStore(t, filepath.Join(t.TempDir(), "messages.db"))
	defer a.Close()
	p := crowd()
	p.Agents["b"], p.Agents["c"] = adapter.AgentPolicy{To: []string{"c"}}, adapter.AgentPolicy{To: []string{"b"}}
	if err := a.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	var sent, came [2][]time.Duration // without and with the flood
	ping := func(from, to string) (send, end time.Duration) {
		t.Helper()
		got := make(chan time.Time)
		go func() {
			ds, err := a.Receive(t.Context(), to, adapter.ReceiveRequest{Wait: time.Minute})
			at := time.Now()
			if err != nil || len(ds) != 1 || ds[0].From != from {
				t.Errorf("%d deliveries, %v", len(ds), err)
			} else {
				a.Ack(t.Context(), to, []string{ds[0].Lease})
			}
			got <- at
		}()
		time.Sleep(time.Millisecond) // it waits
		start := time.Now()
		if r := a.Send(t.Context(), from, []adapter.Draft{{IdempotencyKey: key(), To: to, Type: "note", Body: body()}}); r[0].Err != nil {
			t.Error(r[0].Err)
		}
		send = time.Since(start)
		return send, (<-got).Sub(start)
	}
	flooded, flooding := 0, time.Duration(0)
	for round := range 2 * rounds {
		with := round % 2
		ctx, stop := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		var mu sync.Mutex
		begin := time.Now()
		if with == 1 {
			for f := range flooders {
				flood.Go(func() {
					n := 0
					for i := f; ctx.Err() == nil; i++ { // its queues overflow: what it evicts is its own
						ds := make([]adapter.Draft, batch)
						for j := range ds {
							ds[j] = adapter.Draft{IdempotencyKey: key(), To: fmt.Sprint("sink", (i*batch+j)%sinks), Type: "note", Body: body()}
						}
						for _, r := range a.Send(context.Background(), "sender0", ds) {
							if r.Err == nil {
								n++
							}
						}
					}
					mu.Lock()
					defer mu.Unlock()
					flooded += n
				})
			}
		}
		for i := range pings {
			from, to := "b", "c"
			if i%2 == 1 {
				from, to = to, from
			}
			send, end := ping(from, to)
			sent[with], came[with] = append(sent[with], send), append(came[with], end)
		}
		stop()
		flood.Wait()
		if with == 1 {
			flooding += time.Since(begin)
		}
	}
	t.Logf("the flood: %d senders at once as one agent, batches of %d, %.0f messages/s", flooders, batch, float64(flooded)/flooding.Seconds())
	for with, what := range []string{"alone", "under the flood"} {
		quantiles(t, what+": durable", sent[with])
		quantiles(t, what+": at its recipient", came[with])
		t.Logf("%s: slowest durable %v, at its recipient %v", what, slices.Max(sent[with]).Round(time.Microsecond), slices.Max(came[with]).Round(time.Microsecond))
	}
}
