package store

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"
)

// small gives pm a quota of n bytes.
func small(n int64) func(*Config) {
	return func(c *Config) {
		p := c.Policy.Agents["pm"]
		p.MaxBytes = n
		c.Policy.Agents["pm"] = p
	}
}

// reject has qa refuse all that waits for it, until nothing does.
func (s *stage) reject() {
	s.t.Helper()
	for {
		ds := s.receive("qa", ReceiveRequest{Max: maxReceive, Wait: time.Second})
		if len(ds) == 0 {
			return
		}
		for i := len(ds) - 1; i >= 0; i-- {
			s.Refuse(s.t.Context(), "qa", []Refusal{{Lease: ds[i].Lease, Delay: time.Nanosecond}})
		}
	}
}

// One that refuses everything, or takes nothing, is held up alone.
func TestOneRecipientDoesNotStopASenderTowardsOthers(t *testing.T) {
	const limit = 64 << 10
	big := func(to string) Draft { return note(to, strings.Repeat("x", 1<<10)) }
	for name, reject := range map[string]bool{"it refuses everything": true, "it takes nothing": false} {
		for way, draft := range map[string]Draft{"directly": big("qa"), "in a channel": post("product", strings.Repeat("x", 1<<10))} {
			t.Run(name+" "+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := setUp(t, small(limit))
					refused := 0
					for range 4 * limit >> 10 {
						draft.IdempotencyKey = newKey().String()
						if r := s.Send(t.Context(), "pm", []Draft{draft})[0]; r.Err != nil {
							_ = s.reason(r.Err, deny.MessageQuota)
							refused++
						}
						if reject {
							s.reject()
						}
						for _, agent := range []string{"design", "engineering"} {
							s.ack(agent, s.receive(agent, ReceiveRequest{Channel: "product"})...)
						}
					}
					if direct(draft) != (refused > 0) {
						t.Errorf("%d were refused", refused)
					}
					used := s.used("pm")
					if used > limit*3/4+2<<10 {
						t.Errorf("%d bytes of %d are used", used, limit)
					}
					if s.restart(); s.used("pm") != used {
						t.Errorf("%d bytes are used, and %d from the disk", used, s.used("pm"))
					}
					for range 2 {
						s.send("pm", big("design"))
						s.send("pm", post("all-agents", "to all"))
						_ = s.refused("pm", big("qa"), deny.MessageQuota)
						s.send("pm", as(post("product", "critical"), Escalation))
						s.restart()
					}
					// Nothing is lost: what qa did not get is an operator's, who makes room.
					n := len(s.dead("qa"))
					if dropped, err := s.DropDead(t.Context(), "qa", nil); err != nil || dropped != n {
						t.Fatal(dropped, n, err)
					}
					s.ack("qa", s.receive("qa", ReceiveRequest{Max: maxReceive})...)
					s.send("pm", big("qa"))
				})
			})
		}
	}
}

func direct(d Draft) bool { return d.To != "" }

// used is what counts for an agent's quota.
func (s *stage) used(agent string) (n int64) {
	s.t.Helper()
	if err := s.do(s.t.Context(), &op{run: func(t *txn) { n = t.held(t.agent(agent)).charged(t.quota(agent)) }}); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// What replayed, dropped and pruned dead letters took is free or in the queue again.
func TestDeadLettersThatEndAreNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		for range 3 {
			s.send("pm", note("qa", "hello"))
		}
		before := s.used("pm")
		s.reject()
		if got := s.used("pm"); got != before {
			t.Errorf("dead: %d, in the queue it was %d", got, before)
		}
		dead := s.dead("qa")
		if n, err := s.ReplayDead(t.Context(), "qa", []int64{dead[0].ID}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := s.DropDead(t.Context(), "qa", []int64{dead[1].ID}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if got := s.used("pm"); got != before*2/3 {
			t.Errorf("%d after one of three was dropped, of %d", got, before)
		}
		s.restart()
		s.ack("qa", s.receive("qa", ReceiveRequest{Channel: "@pm+qa"})...)
		if got := s.used("pm"); got != before/3 {
			t.Errorf("%d with one dead letter, of %d", got, before)
		}
		// The first messages have their sequences for ids.
		if err := s.do(t.Context(), &op{run: func(t *txn) { t.prune([]int64{number(dead[2].Sequence)}) }}); err != nil {
			t.Fatal(err)
		}
		if got := s.used("pm"); got != 0 {
			t.Errorf("%d after it was pruned", got)
		}
	})
}

// An agent that the manifest loses holds nobody's quota, and nothing of its queue is lost.
func TestWhatWaitsForAnAgentThatIsGoneIsADeadLetter(t *testing.T) {
	for name, lose := range map[string]func(s *stage, p Policy){
		"while the adapter works": func(s *stage, p Policy) {
			if err := s.SetPolicy(s.t.Context(), p); err != nil {
				s.t.Fatal(err)
			}
		},
		"at its start": func(s *stage, p Policy) { s.Policy = p; s.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := setUp(t, func(c *Config) { c.Policy = withGuest() })
				for range 3 {
					s.send("pm", note("guest", "hello"))
				}
				held := s.receive("guest", ReceiveRequest{Max: 1, Lease: maxLease})
				lose(s, seven())
				if q := s.queue("guest"); q.Queued != 0 || q.Leased != 0 || q.Dead != 3 {
					t.Errorf("%+v", q)
				}
				_ = s.reason(s.Ack(t.Context(), "guest", leases(held))[0], deny.MessageLeaseOver)
				all, _ := s.told("pm", DeliveryFailed)
				if len(all.Failures) != 3 || !strings.Contains(all.Failures[0].Reason, "in the manifest no more") {
					t.Errorf("the sender was told %+v", all)
				}
				if n, err := s.ReplayDead(t.Context(), "guest", nil); n != 0 {
					t.Errorf("%d were replayed to nobody", n)
				} else {
					_ = s.reason(err, deny.MessageNotAllowed)
				}
				lose(s, withGuest())
				if n, err := s.ReplayDead(t.Context(), "guest", nil); n != 3 || err != nil {
					t.Error(n, err)
				}
				s.ack("guest", s.receive("guest", ReceiveRequest{})...)
				if n := s.used("pm"); n != 0 {
					t.Errorf("%d bytes are used", n)
				}
			})
		})
	}
}

// withGuest is the policy with one more agent, whom pm may write to.
func withGuest() Policy {
	p := seven()
	a := p.Agents["pm"]
	a.To = append(a.To, "guest")
	p.Agents["pm"], p.Agents["guest"] = a, AgentPolicy{}
	return p
}
