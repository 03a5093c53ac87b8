package store

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

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

// What was answered is told, whatever happens to the adapter before its notice.
func TestLateRefusalsOutliveTheAdapter(t *testing.T) {
	for name, again := range map[string]func(s *stage){
		"restarted": func(s *stage) { s.restart() },
		"repaired": func(s *stage) {
			if err := s.Close(); err != nil {
				s.t.Fatal(err)
			}
			if r, err := Repair(s.t.Context(), s.Path); err != nil || len(r.Lost) > 0 {
				s.t.Fatal(r, err)
			}
			s.open()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := setUp(t)
				var want []string
				for range 3 {
					d := note("nobody", "refused")
					want = append(want, d.IdempotencyKey)
					_ = s.reason(s.late("pm", d)[0].Err, deny.MessageNotAllowed)
				}
				again(s)
				for agent, typ := range map[string]Type{"pm": DeliveryFailed, "orchestrator": DeadLettered} {
					var got []string
					all, _ := s.told(agent, typ)
					for _, f := range all.Failures {
						got = append(got, f.IdempotencyKey)
						if f.From != "pm" || f.Recipient != "nobody" || f.Channel != "@nobody+pm" || f.Type != "note" || f.Reason == "" {
							t.Errorf("%+v", f)
						}
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s: %s", agent, diff)
					}
				}
				s.restart()
				if all, _ := s.told("pm", DeliveryFailed); len(all.Failures) > 0 {
					t.Errorf("told twice: %+v", all)
				}
			})
		})
	}
}

// FuzzLate refuses any draft late: what is told of it is small, and the store goes on.
func FuzzLate(f *testing.F) {
	f.Add("qa", "", "note", "", 0)
	f.Add("<\xff", "\x00product", "Ä", "1b4e28ba-2fa1-11d2-883f-0016d3cca427", 100)
	a := fuzzed(f)
	f.Fuzz(func(t *testing.T, to, channel, typ, key string, times int) {
		larger := func(s string) string { return strings.Repeat(s, min(max(times, 1), 200)) }
		d := Draft{To: larger(to), Channel: larger(channel), Type: Type(larger(typ)), IdempotencyKey: larger(key), Body: []byte("0")}
		done := make(chan []SendResult, 1)
		a.Submit("pm", []Draft{d}, true, func(r []SendResult) { done <- r })
		a.CommitAside()
		<-done
		if err := a.do(t.Context(), &op{run: func(x *txn) {
			for _, u := range x.untold {
				for _, one := range u.failures {
					raw, err := json.Marshal(one)
					if most := 6*(4*maxName+2+maxReason) + 1024; err != nil || len(raw) > most || !utf8.ValidString(one.Reason+one.Recipient+one.Channel) {
						t.Errorf("%d bytes, %v: %s", len(raw), err, raw)
					}
				}
				u.next = 0 // told at once
			}
		}}); err != nil {
			t.Fatal(err)
		}
		for _, agent := range []string{"pm", "orchestrator", "qa"} {
			if got, err := a.Receive(t.Context(), agent, ReceiveRequest{Max: maxReceive}); err == nil {
				a.Ack(t.Context(), agent, leases(got))
			}
		}
	})
}
