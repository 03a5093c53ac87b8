package store

import (
	"encoding/json"
	"fmt"
	"testing"

	"bulkhead/internal/adapter/draftkey"
)

// A hundred thousand messages wait while the adapter is away, and then each
// comes to its recipient, in order, once.
func TestAHundredThousandMessagesAtRestAreAllDelivered(t *testing.T) {
	const (
		recipients = 250
		each       = 400 // a queue holds 500
		page       = 100
	)
	policy := Policy{Team: "team", Agents: map[string]AgentPolicy{}}
	var to []string
	for i := range recipients {
		to = append(to, fmt.Sprintf("r%d", i))
		policy.Agents[to[i]] = AgentPolicy{}
	}
	policy.Agents["sender"] = AgentPolicy{To: to, MaxBytes: 1 << 30}
	s := setUp(t, func(c *Config) { c.Policy = policy })
	for n := 0; n < each; n++ {
		var ds []Draft
		for _, r := range to {
			ds = append(ds, Draft{IdempotencyKey: draftkey.New(), To: r, Type: "note", Body: json.RawMessage(fmt.Sprint(n))})
		}
		for i, r := range s.Send(t.Context(), "sender", ds) {
			if r.Err != nil || r.Sequence != uint64(n+1) {
				t.Fatalf("message %d to %s: %+v", n, to[i], r)
			}
		}
	}
	s.restart()
	qs, err := s.Queues(t.Context())
	total := 0
	for _, q := range qs {
		total += q.Queued
	}
	if err != nil || total != recipients*each {
		t.Fatalf("%d wait, want %d; %v", total, recipients*each, err)
	}
	for _, r := range to {
		n := 0
		for n < each {
			ds := s.receive(r, ReceiveRequest{Max: page})
			if len(ds) == 0 {
				t.Fatalf("%s got %d messages of %d", r, n, each)
			}
			for _, d := range ds {
				if d.Sequence != uint64(n+1) || string(d.Body) != fmt.Sprint(n) || d.Attempt != 1 {
					t.Fatalf("%s got %+v as message %d", r, d, n+1)
				}
				n++
			}
			s.ack(r, ds...)
		}
	}
	s.restart()
	for _, r := range to {
		if ds := s.receive(r, ReceiveRequest{Max: 1}); len(ds) != 0 {
			t.Fatalf("%s got one again: %+v", r, ds)
		}
	}
}
