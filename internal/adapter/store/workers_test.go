package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
)

// errCrashed is what a caller gets whose adapter went away: the answer is unknown.
var errCrashed = errors.New("the adapter crashed")

// store is what workers need of an adapter, wherever it runs.
type store interface {
	Send(ctx context.Context, from string, drafts []Draft) []SendResult
	Receive(ctx context.Context, agent string, q ReceiveRequest) ([]Delivery, error)
	Ack(ctx context.Context, agent string, leases []string) []error
	Refuse(ctx context.Context, agent string, q []Refusal) []error
}

// workers send and receive against adapters that come and go.
type workers struct {
	t      *testing.T
	policy Policy
	*history

	mu      sync.Mutex
	current store
	alive   chan struct{} // closed while there is a store

	senders, receivers sync.WaitGroup
	stopSending        chan struct{}
	stopReceiving      chan struct{}
}

func newWorkers(t *testing.T, p Policy) *workers {
	return &workers{t: t, policy: p, history: newHistory(), alive: make(chan struct{}), stopSending: make(chan struct{}), stopReceiving: make(chan struct{})}
}

// set says where the adapter is now; nil: it is gone.
func (w *workers) set(s store) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s != nil && w.current == nil {
		close(w.alive)
	} else if s == nil && w.current != nil {
		w.alive = make(chan struct{})
	}
	w.current = s
}

// store waits for one.
func (w *workers) store() store {
	for {
		w.mu.Lock()
		s, alive := w.current, w.alive
		w.mu.Unlock()
		if s != nil {
			return s
		}
		<-alive
	}
}

func over(stop chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// again tells whether a request has to be repeated: its answer is unknown, or
// there is no room yet.
func again(err error) bool {
	var r *deny.Reason
	return errors.Is(err, errCrashed) || errors.As(err, &r) && (r.RetryAfter > 0)
}

// sender sends batches to agents and channels, each until it is taken.
func (w *workers) sender(from string, seed uint64, pause time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 1))
	channels := []string{"all-agents"}
	if allowed.Member(&w.policy, from, "product") {
		channels = append(channels, "product")
	}
	for !over(w.stopSending) {
		var ds []Draft
		for range 1 + rng.IntN(4) {
			d := note(w.policy.Agents[from].To[rng.IntN(len(w.policy.Agents[from].To))], "work")
			if rng.IntN(3) == 0 {
				d.To, d.Channel = "", channels[rng.IntN(len(channels))]
			}
			d.Priority = []Priority{Low, Normal, High}[rng.IntN(3)]
			ds = append(ds, d)
		}
		begin := w.now()
		for len(ds) > 0 {
			var open []Draft
			for i, r := range w.store().Send(context.Background(), from, ds) {
				switch {
				case r.Err == nil:
					w.sent(sent{key: ds[i].IdempotencyKey, from: from, channel: r.Channel, to: w.recipients(from, ds[i]), seq: r.Sequence, begin: begin, end: w.now()})
				case again(r.Err):
					open = append(open, ds[i])
				default:
					w.t.Errorf("send: %v", r.Err)
				}
			}
			if ds = open; len(ds) > 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Duration(rng.Int64N(int64(pause) + 1)))
	}
}

func (w *workers) recipients(from string, d Draft) []string {
	if d.To != "" {
		return []string{d.To}
	}
	return slices.DeleteFunc(slices.Clone(w.policy.Channels[d.Channel]), func(m string) bool { return m == from })
}

// receiver acknowledges most of what it gets, refuses some and forgets some.
// Once sending is over it acknowledges all.
func (w *workers) receiver(agent string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for !over(w.stopReceiving) {
		begin := w.now()
		ds, err := w.store().Receive(context.Background(), agent, ReceiveRequest{Max: 1 + rng.IntN(20), Wait: 20 * time.Millisecond, Lease: time.Second})
		if err != nil {
			if !again(err) {
				w.t.Errorf("receive: %v", err)
			}
			time.Sleep(time.Millisecond)
			continue
		}
		w.got(agent, begin, ds)
		refuse := Refusal{}
		if n := rng.IntN(20); len(ds) > 0 && n < 2 && !over(w.stopSending) {
			at := rng.IntN(len(ds))
			if n == 0 {
				refuse = Refusal{Lease: ds[at].Lease, Delay: time.Millisecond, Reason: "at random"}
			}
			ds = ds[:at]
		}
		w.acknowledge(agent, ds)
		if refuse.Lease != "" {
			w.store().Refuse(context.Background(), agent, []Refusal{refuse}) // without an answer the lease just ends
		}
	}
}

func (w *workers) acknowledge(agent string, ds []Delivery) {
	begin := w.now()
	for len(ds) > 0 {
		var open []Delivery
		for i, err := range w.store().Ack(context.Background(), agent, leases(ds)) {
			var r *deny.Reason
			switch {
			case err == nil:
				w.acked(agent, ds[i].IdempotencyKey, begin, true)
			case errors.As(err, &r) && r.Code == deny.MessageLeaseOver:
				w.acked(agent, ds[i].IdempotencyKey, begin, false)
			case again(err):
				open = append(open, ds[i])
			default:
				w.t.Errorf("ack: %v", err)
			}
		}
		if ds = open; len(ds) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// start lets all agents of the team work.
func (w *workers) start(pause time.Duration) {
	for i, agent := range w.policy.Channels["all-agents"] {
		w.senders.Go(func() { w.sender(agent, uint64(i), pause) })
		w.receivers.Go(func() { w.receiver(agent, uint64(i)) })
	}
}

// everything reads all channels and dead letters of an adapter.
func everything(t *testing.T, a *Adapter) (channels map[string][]Message, dead map[string]map[string]bool) {
	t.Helper()
	channels, dead = map[string][]Message{}, map[string]map[string]bool{}
	for at := int64(0); ; {
		tail, err := a.Tail(t.Context(), at, maxPage, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(tail.Messages) == 0 {
			break
		}
		for _, m := range tail.Messages {
			channels[m.Channel] = append(channels[m.Channel], m)
		}
		at = tail.Position
	}
	for at := int64(0); ; {
		ds, err := a.DeadLetters(t.Context(), "", at, maxPage)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			return channels, dead
		}
		for _, d := range ds {
			if dead[d.Recipient] == nil {
				dead[d.Recipient] = map[string]bool{}
			}
			dead[d.Recipient][d.IdempotencyKey] = true
			at = d.ID
		}
	}
}
