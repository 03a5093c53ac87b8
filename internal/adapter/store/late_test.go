package store

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"
)

// late sends drafts that an outbox had accepted, and gives what was answered.
func (s *stage) late(from string, drafts ...Draft) []SendResult {
	s.t.Helper()
	got := make(chan []SendResult, 1)
	s.Submit(from, drafts, true, func(r []SendResult) { got <- r })
	s.CommitAside()
	return <-got
}

// told is all that an agent's notices of a type say, until no more come.
func (s *stage) told(agent string, typ Type) (all Notice, largest int) {
	s.t.Helper()
	for {
		ds := s.receive(agent, ReceiveRequest{Channel: Direct(System, agent), Wait: 2 * time.Second})
		for _, d := range ds {
			var n Notice
			if err := json.Unmarshal(d.Body, &n); err != nil {
				s.t.Fatal(err)
			}
			if s.ack(agent, d); d.Type == typ {
				largest = max(largest, len(d.Body))
				all.Failures, all.Omitted = append(all.Failures, n.Failures...), all.Omitted+n.Omitted
			}
		}
		if len(ds) == 0 {
			return all, largest
		}
	}
}

// A gateway that is not ours any more chooses what it sends, and its sender is told of it.
func TestNoticesOfLateRefusalsAreSmallWhateverWasRefused(t *testing.T) {
	large := strings.Repeat("<", 3<<20) // six bytes in JSON
	for name, bad := range map[string]Draft{
		"a recipient": {To: large}, "a channel": {Channel: large}, "a type": {To: "qa", Type: Type(large)}, "a key": {To: "qa", IdempotencyKey: large},
		"all": {To: large, Channel: large, Type: Type(large), Priority: Priority(large), IdempotencyKey: large},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := setUp(t)
				drafts := make([]Draft, noticeMost)
				for i := range drafts {
					drafts[i] = bad
				}
				for _, r := range s.late("pm", drafts...) {
					if reason := s.reason(r.Err, deny.MessageInvalid); len(reason.Error()) > 2*maxReason {
						t.Fatalf("a reason of %d bytes", len(reason.Error()))
					}
				}
				for agent, typ := range map[string]Type{"pm": DeliveryFailed, "orchestrator": DeadLettered} {
					all, largest := s.told(agent, typ)
					if len(all.Failures) != len(drafts) || all.Omitted != 0 || largest > noticeBytes+1024 {
						t.Errorf("%s was told of %d and %d in at most %d bytes", agent, len(all.Failures), all.Omitted, largest)
					}
				}
			})
		})
	}
}

func TestTooManyLateRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		const batches = 10
		for range batches {
			s.late("pm", make([]Draft, MaxBatch)...)
		}
		all, _ := s.told("pm", DeliveryFailed)
		if n := len(all.Failures) + all.Omitted; n != batches*MaxBatch || len(all.Failures) > lateMost+2*noticeMost {
			t.Errorf("told of %d and %d of %d", len(all.Failures), all.Omitted, batches*MaxBatch)
		}
	})
}
