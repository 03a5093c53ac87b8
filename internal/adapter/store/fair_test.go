package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"bulkhead/internal/deny"
)

func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// fill sends n messages in batches and demands that all are taken.
func (s *stage) fill(from, to string, n int, typ Type) {
	s.t.Helper()
	for n > 0 {
		var ds []Draft
		for range min(n, MaxBatch) {
			ds = append(ds, as(note(to, "flood"), typ))
		}
		for _, r := range s.Send(s.t.Context(), from, ds) {
			if r.Err != nil {
				s.t.Fatal(r.Err)
			}
		}
		n -= len(ds)
	}
}

func TestAFloodEvictsItselfAndNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t)
		s.fill("design", "qa", 100, "note")
		s.send("ops", note("qa", strings.Repeat("large", 10000))) // by bytes it would be the largest
		s.fill("pm", "qa", 2000, "note")
		q := s.queue("qa")
		if q.Queued != QueueSize || q.Senders["design"] != 100 || q.Senders["ops"] != 1 || q.Senders["pm"] != 399 {
			t.Fatalf("%+v", q)
		}
		dead := s.dead("qa")
		if len(dead) != maxPage || dead[0].Sequence != 1 || dead[0].From != "pm" || !strings.Contains(dead[0].Reason, "evicted") {
			t.Fatalf("%d dead letters, the first %+v", len(dead), dead[0])
		}
		// Nothing is gone without its sender and the orchestrator knowing.
		told := map[string]int{}
		for range 40 {
			for agent, typ := range map[string]Type{"pm": DeliveryFailed, "orchestrator": DeadLettered} {
				told[agent] += len(s.notices(agent, typ))
			}
			synctest.Wait()
			s.receive("outsider", ReceiveRequest{Wait: second}) // a second passes
		}
		if told["pm"] != q.Dead || told["orchestrator"] != q.Dead {
			t.Errorf("told %v of %d", told, q.Dead)
		}
	})
}

func TestCriticalMessagesAreNeverEvicted(t *testing.T) {
	s := setUp(t)
	s.fill("pm", "qa", QueueSize-2, Escalation)
	s.fill("design", "qa", 2, "note")
	s.fill("pm", "qa", 2, Escalation) // takes the place of the ordinary ones
	r := s.refused("pm", as(note("qa", "one more"), Escalation), deny.MessageQueueFull)
	if r.RetryAfter == 0 || r.Envelope().StatusCode != 429 {
		t.Errorf("%+v", r)
	}
	_ = s.refused("design", note("qa", "an ordinary one"), deny.MessageQueueFull)
	if q := s.queue("qa"); q.Senders["pm"] != QueueSize || q.Dead != 2 {
		t.Fatalf("%+v", q)
	}
	// A channel is not held up by its full member, and nothing is lost.
	sent := s.send("pm", post("product", "to all"))
	if ds := s.receive("design", ReceiveRequest{Channel: "product"}); len(ds) != 1 || ds[0].Sequence != sent.Sequence {
		t.Errorf("%+v", ds)
	}
	if q := s.queue("qa"); q.Dead != 3 {
		t.Errorf("%+v", q)
	}
	// Unless it is critical: then its sender waits.
	_ = s.refused("pm", as(post("product", "to all"), Escalation), deny.MessageQueueFull)
	if st, _ := s.Channels(t.Context(), "pm"); st[len(st)-1].Channel != "product" || st[len(st)-1].Last != sent.Sequence {
		t.Errorf("a refusal took a sequence: %+v", st)
	}
}

func TestOrdinaryMessagesOfALargeSenderDoNotEvictThoseOfASmallOne(t *testing.T) {
	s := setUp(t)
	s.fill("pm", "qa", QueueSize-5, Escalation)
	s.fill("design", "qa", 5, "note")
	_ = s.refused("pm", note("qa", "ordinary"), deny.MessageQueueFull)
	if q := s.queue("qa"); q.Senders["design"] != 5 {
		t.Fatalf("%+v", q)
	}
}

func TestASenderHasAByteQuotaDeadLettersIncluded(t *testing.T) {
	s := setUp(t, func(c *Config) {
		p := c.Policy.Agents["pm"]
		p.MaxBytes = 10 << 10
		c.Policy.Agents["pm"] = p
	})
	big := func() Draft { return note("qa", strings.Repeat("x", 4<<10)) }
	s.send("pm", big())
	s.send("pm", big())
	r := s.refused("pm", big(), deny.MessageQuota)
	if r.RetryAfter == 0 || r.Envelope().StatusCode != 429 {
		t.Errorf("%+v", r)
	}
	s.send("design", big()) // others are not concerned
	s.restart()
	_ = s.refused("pm", big(), deny.MessageQuota)
	s.ack("qa", s.receive("qa", ReceiveRequest{Max: 1, Channel: "@pm+qa"})...)
	s.send("pm", big())
	_ = s.refused("pm", big(), deny.MessageQuota)
}

func TestAFloodedQueueDelaysOthersByABound(t *testing.T) {
	s := setUp(t)
	high := func(to string) Draft { d := note(to, "flood"); d.Priority = High; return d }
	for range 300 {
		s.send("pm", high("qa"))
	}
	low := note("qa", "low")
	low.Priority = Low
	s.send("design", low)
	s.send("ops", note("qa", "normal"))
	for i := range 300 {
		ds := s.receive("qa", ReceiveRequest{Max: 1})
		s.ack("qa", ds...)
		if ds[0].From == "design" {
			if i > 2*patience {
				t.Errorf("the low one came after %d", i)
			}
			return
		}
	}
	t.Error("it never came")
}

func TestPriorityDecidesBetweenChannels(t *testing.T) {
	s := setUp(t)
	var want []string
	for i, p := range []Priority{Low, Normal, High} {
		for n := range 3 {
			d := note("qa", fmt.Sprint(p, n))
			d.Priority = p
			s.send([]string{"pm", "design", "ops"}[i], d)
		}
	}
	for _, p := range []Priority{High, Normal, Low} {
		for n := range 3 {
			want = append(want, fmt.Sprint(p, n))
		}
	}
	if got := bodies(s.receive("qa", ReceiveRequest{})); fmt.Sprint(got) != fmt.Sprint(want[:len(got)]) || len(got) != 9 {
		t.Errorf("%v", got)
	}
}

func TestTheIntakeServesAgentsInTurns(t *testing.T) {
	in := newIntake()
	for range 1000 {
		_ = in.put(&op{agent: "a", cost: 1})
	}
	_ = in.put(&op{agent: "b", cost: 1})
	_ = in.put(&op{agent: "c", cost: 256})
	place := map[string]int{}
	n := 0
	for !in.empty() {
		for _, o := range in.take(nil) {
			n += o.cost
			if _, ok := place[o.agent]; !ok {
				place[o.agent] = n
			}
		}
	}
	if place["b"] > 2*quantum || place["c"] > 9*quantum+256+1 {
		t.Errorf("%v", place)
	}
	for range 10 * intakeCost {
		if err := in.put(&op{agent: "a", cost: 1}); err != nil {
			if err := in.put(&op{agent: "b", cost: 1}); err != nil {
				t.Error("one that waits for nothing was refused")
			}
			return
		}
	}
	t.Error("there is no bound")
}

func TestOperatorsSeeAndSend(t *testing.T) {
	s := setUp(t)
	s.send("pm", note("qa", "one"))
	tail, err := s.Tail(t.Context(), 0, 10, 0)
	if err != nil || len(tail.Messages) != 1 {
		t.Fatal(tail, err)
	}
	got := make(chan Tail)
	go func() {
		next, err := s.Tail(t.Context(), tail.Position, 10, maxWait)
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	r := s.OperatorSend(t.Context(), as(post("product", "from above"), GovernanceDirective))
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if next := <-got; len(next.Messages) != 1 || next.Messages[0].From != OperatorName {
		t.Errorf("%+v", next)
	}
	p := seven()
	p.Channels["product"] = []string{"pm"}
	if err := s.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	_ = s.refused("qa", post("product", "no longer"), deny.MessageNotAllowed)
	if ds := s.receive("qa", ReceiveRequest{}); len(ds) != 2 {
		t.Errorf("what was queued before the change of members stays: %v", bodies(ds))
	}
	p.Agents[System] = AgentPolicy{}
	if s.SetPolicy(t.Context(), p) == nil {
		t.Error("an agent got the adapter's name")
	}
	m, err := s.Metrics(t.Context())
	raw, _ := json.Marshal(m)
	if err != nil || m.Sent != 2 || m.Refused != 1 || m.Commit.Count == 0 || len(m.Queues) != 7 {
		t.Errorf("%s %v", raw, err)
	}
}
