package store

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what callers saw: the only thing that crashes are judged by.
//
// A request whose answer was lost in a crash is asked again with the same key
// or lease, and counts as one operation from the first asking to the last
// answer.
type history struct {
	mu         sync.Mutex
	sends      map[string]*sent          // by key
	deliveries map[string][]delivered    // by recipient, in the order in which it got them
	acks       map[recipientKey][]ackked // what was acknowledged
	start      time.Time
}

type sent struct {
	key, from, channel string
	to                 []string
	seq                uint64
	begin, end         int64
}

type delivered struct {
	key, channel string
	seq          uint64
	begin, end   int64
}

type ackked struct {
	begin, end int64
	sure       bool // the answer was yes; else: it may have been done by an asking before
}

type recipientKey struct{ recipient, key string }

func newHistory() *history {
	return &history{sends: map[string]*sent{}, deliveries: map[string][]delivered{}, acks: map[recipientKey][]ackked{}, start: time.Now()}
}

func (h *history) now() int64 { return int64(time.Since(h.start)) }

func (h *history) sent(s sent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sends[s.key] = &s
}

func (h *history) got(recipient string, begin int64, ds []Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range ds {
		h.deliveries[recipient] = append(h.deliveries[recipient], delivered{d.IdempotencyKey, d.Channel, d.Sequence, begin, h.now()})
	}
}

func (h *history) acked(recipient, key string, begin int64, sure bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := recipientKey{recipient, key}
	h.acks[k] = append(h.acks[k], ackked{begin, h.now(), sure})
}

// judge holds the history against what is in the store at the end: channels
// by name with everything in them, and keys of dead letters by recipient.
func (h *history) judge(t *testing.T, channels map[string][]Message, dead map[string]map[string]bool) {
	t.Helper()
	h.sequences(t, channels)
	h.order(t)
	lost := 0
	for key, s := range h.sends {
		for _, r := range s.to {
			got := slices.ContainsFunc(h.deliveries[r], func(d delivered) bool { return d.key == key })
			if !got && !dead[r][key] {
				if lost++; lost < 10 {
					t.Errorf("message %d of %s was acknowledged to %s and %s never got it", s.seq, s.channel, s.from, r)
				}
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d deliveries lost", lost)
	}
	h.linear(t)
}

// sequences: what is in the store has no gap, no key twice, time in order,
// and every acknowledged message at the place that its sender was told.
func (h *history) sequences(t *testing.T, channels map[string][]Message) {
	t.Helper()
	at := map[string]string{}
	for name, ms := range channels {
		for i, m := range ms {
			if m.Sequence != uint64(i+1) {
				t.Errorf("channel %s has %d in place of %d", name, m.Sequence, i+1)
				break
			}
			if i > 0 && m.Time.Before(ms[i-1].Time) {
				t.Errorf("channel %s: time goes back at %d", name, m.Sequence)
			}
			if before, twice := at[m.IdempotencyKey]; twice {
				t.Errorf("key %s is in %s and again in %s", m.IdempotencyKey, before, name)
			}
			at[m.IdempotencyKey] = fmt.Sprint(name, "/", m.Sequence)
		}
	}
	for key, s := range h.sends {
		if place := fmt.Sprint(s.channel, "/", s.seq); at[key] != place {
			t.Errorf("%s was told that its message is at %s, it is at %q", s.from, place, at[key])
		}
	}
}

// order: each recipient saw the messages of a channel for the first time in
// their order.
func (h *history) order(t *testing.T) {
	t.Helper()
	for r, ds := range h.deliveries {
		last := map[string]uint64{}
		seen := map[string]bool{}
		for _, d := range ds {
			if !seen[d.key] && d.seq < last[d.channel] {
				t.Errorf("%s got %d of %s after %d", r, d.seq, d.channel, last[d.channel])
			}
			seen[d.key] = true
			last[d.channel] = max(last[d.channel], d.seq)
		}
	}
}

// The written model. A channel is a counter: a send takes the next number. A
// delivery of one message to one recipient goes from nothing to queued by the
// send, and to acknowledged by the acknowledgement; it can be received only
// in between.
type action struct {
	kind string // send, receive, ack
	part string // what it is about: a channel, or a recipient and a key
}

var counterModel = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, _, output any) (bool, any) {
		return output.(uint64) == state.(uint64)+1, output
	},
}

var deliveryModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{"nothing"} },
	Step: func(state, input, output any) []any {
		sure := output.(bool)
		switch in := input.(action); {
		case in.kind == "send" && state == "nothing":
			return []any{"queued"}
		case in.kind == "receive" && state == "queued":
			return []any{"queued"}
		case in.kind == "ack" && sure && state == "queued":
			return []any{"acknowledged"}
		case in.kind == "ack" && !sure && state == "queued":
			return []any{"queued", "acknowledged"}
		case in.kind == "ack" && !sure:
			return []any{state}
		}
		return nil
	},
}).ToModel()

// linear checks the history against both models.
func (h *history) linear(t *testing.T) {
	t.Helper()
	counters := map[string][]porcupine.Operation{}
	parts := map[recipientKey][]porcupine.Operation{}
	add := func(k recipientKey, kind string, begin, end int64, sure bool) {
		parts[k] = append(parts[k], porcupine.Operation{ClientId: len(parts[k]), Input: action{kind, k.recipient + " " + k.key}, Output: sure, Call: begin, Return: end})
	}
	for key, s := range h.sends {
		counters[s.channel] = append(counters[s.channel], porcupine.Operation{ClientId: len(counters[s.channel]), Input: action{"send", s.channel}, Output: s.seq, Call: s.begin, Return: s.end})
		for _, r := range s.to {
			add(recipientKey{r, key}, "send", s.begin, s.end, true)
		}
	}
	for r, ds := range h.deliveries {
		for _, d := range ds {
			if h.sends[d.key] == nil {
				continue // a notice: nobody saw it being sent
			}
			add(recipientKey{r, d.key}, "receive", d.begin, d.end, true)
		}
	}
	for k, as := range h.acks {
		for _, a := range as {
			if h.sends[k.key] == nil {
				continue
			}
			add(k, "ack", a.begin, a.end, a.sure)
		}
	}
	bad := 0
	for k, ops := range parts {
		if !porcupine.CheckOperations(deliveryModel, ops) {
			if bad++; bad < 5 {
				t.Errorf("the delivery of %s to %s does not follow the model: %+v", k.key, k.recipient, ops)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if !porcupine.CheckOperations(counterModel, counters[name]) {
			t.Errorf("the sequences of %s do not follow the model", name)
		}
	}
	t.Logf("%d sends, %d deliveries and %d acknowledgements follow the model", len(h.sends), total(h.deliveries), len(h.acks))
}

func total[K comparable, V any](m map[K][]V) (n int) {
	for _, v := range m {
		n += len(v)
	}
	return n
}
