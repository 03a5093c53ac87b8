package store

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"

	"github.com/google/go-cmp/cmp"
)

// notices are the notices that an agent has waiting.
func (s *stage) notices(agent string, typ Type) (out []Failure) {
	s.t.Helper()
	for _, d := range s.receive(agent, ReceiveRequest{Channel: Direct(System, agent), Max: maxReceive}) {
		var n Notice
		if err := json.Unmarshal(d.Body, &n); err != nil {
			s.t.Fatal(err)
		}
		if d.From != System {
			s.t.Errorf("a notice from %s", d.From)
		}
		if d.Type == typ {
			out = append(out, n.Failures...)
		}
		s.ack(agent, d)
	}
	return out
}

func TestADeliveryIsTriedFourTimesAndThenDead(t *testing.T) {
	for name, fail := range map[string]func(s *stage, d Delivery){
		"refused": func(s *stage, d Delivery) {
			for _, err := range s.Refuse(s.t.Context(), "qa", []Refusal{{Lease: d.Lease, Reason: "not now"}}) {
				if err != nil {
					s.t.Fatal(err)
				}
			}
		},
		"not acknowledged": func(*stage, Delivery) { time.Sleep(30 * second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := setUp(t)
				s.send("pm", note("qa", "hello"))
				s.send("pm", note("qa", "later"))
				s.send("design", note("qa", "of another channel"))
				for attempt := 1; attempt <= 4; attempt++ {
					begin := time.Now()
					ds := s.receive("qa", ReceiveRequest{Max: 1, Wait: maxWait, Channel: "@pm+qa"})
					if len(ds) != 1 || ds[0].Attempt != attempt || ds[0].Sequence != 1 {
						t.Fatalf("attempt %d: %+v", attempt, ds)
					}
					if attempt > 1 {
						if waited := time.Since(begin); waited != backoff(attempt-1) {
							t.Errorf("attempt %d came after %s, not %s", attempt, waited, backoff(attempt-1))
						}
					}
					if attempt == 2 {
						s.restart()
					}
					fail(s, ds[0])
				}
				synctest.Wait()
				if ds := s.dead("qa"); len(ds) != 1 || ds[0].Attempts != 4 || ds[0].Sequence != 1 || ds[0].From != "pm" || ds[0].Reason == "" {
					t.Fatalf("%+v", ds)
				}
				// The next of the channel is free, and sender and orchestrator know.
				if ds := s.receive("qa", ReceiveRequest{Channel: "@pm+qa"}); len(ds) != 1 || ds[0].Sequence != 2 || ds[0].Attempt != 1 {
					t.Fatalf("%+v %+v", ds, s.queue("qa"))
				}
				for agent, typ := range map[string]Type{"pm": DeliveryFailed, "orchestrator": DeadLettered} {
					if fs := s.notices(agent, typ); len(fs) != 1 || fs[0].Recipient != "qa" || fs[0].Sequence != 1 || fs[0].From != "pm" {
						t.Errorf("%s was told %+v", agent, fs)
					}
				}
			})
		})
	}
}

func TestALaterMessageWaitsForTheRetryOfAnEarlierOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		for _, n := range numbered(3) {
			s.send("pm", note("qa", n))
		}
		first := s.receive("qa", ReceiveRequest{Max: 2})
		s.Refuse(t.Context(), "qa", []Refusal{{Lease: first[0].Lease, Delay: 5 * second}})
		// What was leased after it is void, or it would be done before it.
		_ = s.reason(s.Ack(t.Context(), "qa", []string{first[1].Lease})[0], deny.MessageLeaseOver)
		if ds := s.receive("qa", ReceiveRequest{Wait: 4 * second}); len(ds) != 0 {
			t.Fatalf("overtaken by %v", bodies(ds))
		}
		ds := s.receive("qa", ReceiveRequest{Wait: 2 * second})
		if diff := cmp.Diff(numbered(3), bodies(ds)); diff != "" {
			t.Fatal(diff)
		}
		if ds[0].Attempt != 2 || ds[1].Attempt != 1 {
			t.Errorf("attempts %d and %d", ds[0].Attempt, ds[1].Attempt)
		}
	})
}

func TestALeaseBelongsToOneRecipientAndOneDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		s.send("pm", post("product", "hello"))
		qa, design := s.receive("qa", ReceiveRequest{}), s.receive("design", ReceiveRequest{})
		over := func(agent, lease string) {
			t.Helper()
			_ = s.reason(s.Ack(t.Context(), agent, []string{lease})[0], deny.MessageLeaseOver)
		}
		over("design", qa[0].Lease)
		over("nobody", qa[0].Lease)
		over("qa", "")
		over("qa", leaseToken(1, 1))
		s.ack("qa", qa...)
		over("qa", qa[0].Lease)
		if errs := s.Extend(t.Context(), "design", leases(design), 50*second); errs[0] != nil {
			t.Fatal(errs)
		}
		time.Sleep(49 * second)
		if errs := s.Extend(t.Context(), "design", leases(design), 10*second); errs[0] != nil {
			t.Fatal(errs)
		}
		time.Sleep(12 * second)
		over("design", design[0].Lease)
		again := s.receive("design", ReceiveRequest{Wait: second})
		over("design", design[0].Lease)
		s.ack("design", again...)
	})
}

func TestAReceiverThatNeverAcknowledgesHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		for _, n := range numbered(20) {
			s.send("pm", post("product", n))
		}
		for range 4 {
			if ds := s.receive("qa", ReceiveRequest{Max: maxReceive, Wait: maxWait}); len(ds) != 20 {
				t.Fatalf("%d delivered", len(ds))
			}
			time.Sleep(30 * second)
		}
		synctest.Wait()
		if q := s.queue("qa"); q.Dead != 20 || q.Queued != 0 {
			t.Fatalf("%+v", q)
		}
		if ds := s.receive("design", ReceiveRequest{Max: maxReceive}); len(ds) != 20 {
			t.Errorf("design got %d", len(ds))
		}
		time.Sleep(2 * second)
		if fs := s.notices("pm", DeliveryFailed); len(fs) != 20 {
			t.Errorf("the sender was told of %d", len(fs))
		}
	})
}

func TestWhatAGoneReceiverWasGivenComesAgainAtOnce(t *testing.T) {
	s := setUp(t)
	ctx, cancel := testContext(t)
	gone := make(chan error)
	go func() {
		_, err := s.Receive(ctx, "qa", ReceiveRequest{Wait: maxWait})
		gone <- err
	}()
	cancel()
	if err := <-gone; err == nil {
		t.Fatal("no error")
	}
	s.send("pm", note("qa", "hello"))
	if ds := s.receive("qa", ReceiveRequest{}); len(ds) != 1 || ds[0].Attempt != 1 {
		t.Fatalf("%+v", ds)
	}
}

func TestDeadLettersAreReplayedInPlaceOrDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		for _, n := range numbered(4) {
			s.send("pm", note("qa", n))
		}
		for range 4 {
			ds := s.receive("qa", ReceiveRequest{Max: 2, Wait: maxWait})
			for _, d := range []Delivery{ds[1], ds[0]} { // the later first: both count
				s.Refuse(t.Context(), "qa", []Refusal{{Lease: d.Lease}})
			}
			time.Sleep(8 * second)
		}
		dead := s.dead("qa")
		if len(dead) != 2 {
			t.Fatalf("%+v", dead)
		}
		if n, err := s.ReplayDead(t.Context(), "design", []int64{dead[0].ID}); n != 0 || err != nil {
			t.Errorf("replayed for another recipient: %d, %v", n, err)
		}
		s.restart()
		for i := range dead {
			if n, err := s.ReplayDead(t.Context(), "", []int64{dead[i].ID}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		ds := s.receive("qa", ReceiveRequest{Channel: "@pm+qa"})
		if diff := cmp.Diff(numbered(4), bodies(ds)); diff != "" || ds[0].Attempt != 1 {
			t.Fatalf("attempt %d\n%s", ds[0].Attempt, diff)
		}
		if len(s.dead("qa")) != 0 {
			t.Error("still dead")
		}
	})
}
