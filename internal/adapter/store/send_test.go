package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"

	"github.com/google/go-cmp/cmp"
)

func TestADraftIsRefusedWithEveryReason(t *testing.T) {
	s := setUp(t)
	for name, c := range map[string]struct {
		from   string
		change func(*Draft)
		code   deny.Code
		fields []string
	}{
		"a key that is no UUID":                {"pm", func(d *Draft) { d.IdempotencyKey = "1" }, deny.MessageInvalid, []string{"idempotency_key"}},
		"no recipient":                         {"pm", func(d *Draft) { d.To = "" }, deny.MessageInvalid, []string{"to"}},
		"an agent and a channel":               {"pm", func(d *Draft) { d.Channel = "product" }, deny.MessageInvalid, []string{"channel"}},
		"a direct channel by its name":         {"pm", func(d *Draft) { d.To, d.Channel = "", "@pm+qa" }, deny.MessageInvalid, []string{"channel"}},
		"itself":                               {"pm", func(d *Draft) { d.To = "pm" }, deny.MessageInvalid, []string{"to"}},
		"a notice":                             {"pm", func(d *Draft) { d.Type = DeadLettered }, deny.MessageInvalid, []string{"type"}},
		"an answer to what is not there":       {"pm", func(d *Draft) { d.ReplyTo = 7 }, deny.MessageInvalid, []string{"reply_to_sequence_id"}},
		"no JSON":                              {"pm", func(d *Draft) { d.Body = []byte("{") }, deny.MessageInvalid, []string{"body"}},
		"no body":                              {"pm", func(d *Draft) { d.Body = nil }, deny.MessageInvalid, []string{"body"}},
		"everything wrong at once":             {"pm", func(d *Draft) { *d = Draft{Priority: "now", Type: "A"} }, deny.MessageInvalid, []string{"idempotency_key", "to", "type", "priority", "body"}},
		"a body of more than a megabyte":       {"pm", func(d *Draft) { d.Body = bytes.Repeat([]byte("1"), MaxBody+1) }, deny.MessageTooLarge, nil},
		"a rule that is one-way":               {"qa", func(d *Draft) { d.To = "outsider" }, deny.MessageNotAllowed, nil},
		"no member of the channel":             {"outsider", func(d *Draft) { d.To, d.Channel = "", "product" }, deny.MessageNotAllowed, nil},
		"no such channel":                      {"pm", func(d *Draft) { d.To, d.Channel = "", "secret" }, deny.MessageNotAllowed, nil},
		"no such agent":                        {"pm", func(d *Draft) { d.To = "nobody" }, deny.MessageNotAllowed, nil},
		"a sender that is no agent":            {"nobody", func(*Draft) {}, deny.MessageNotAllowed, nil},
		"the adapter's own name":               {System, func(*Draft) {}, deny.MessageNotAllowed, nil},
		"the operator's name":                  {OperatorName, func(*Draft) {}, deny.MessageNotAllowed, nil},
		"a critical type without a permission": {"pm", func(d *Draft) { d.Type = GovernanceDirective }, deny.MessageNotAllowed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := note("qa", "hello")
			c.change(&d)
			// What is refused must not fail what is sent beside it.
			rs := s.Send(t.Context(), c.from, []Draft{note("pm", "before"), d, note("pm", "after")})
			r := s.reason(rs[1].Err, c.code)
			var fields []string
			for _, f := range r.Fields {
				fields = append(fields, f.Name)
			}
			if diff := cmp.Diff(c.fields, fields); diff != "" || r.Mend == "" || r.What == "" {
				t.Errorf("%v:\n%s", r, diff)
			}
			if c.from == "qa" && (rs[0].Err != nil || rs[2].Err != nil) {
				t.Errorf("neighbours failed: %v, %v", rs[0].Err, rs[2].Err)
			}
		})
	}
	if n := s.queue("qa").Queued; n != 0 {
		t.Errorf("%d refused messages were queued", n)
	}
}

func TestAKeyIsTakenOnce(t *testing.T) {
	s := setUp(t)
	d := note("qa", "hello")
	first := s.send("pm", d)
	other := d
	other.Body = json.RawMessage(`"other"`)
	spaced := d
	spaced.Body = json.RawMessage(` "hello" `)
	check := func() {
		t.Helper()
		rs := s.Send(t.Context(), "pm", []Draft{d, note("qa", "between"), spaced, other})
		for _, i := range []int{0, 2} {
			if r := rs[i]; r.Err != nil || !r.Duplicate || r.Sequence != first.Sequence || !r.Time.Equal(first.Time) {
				t.Errorf("%d: %+v is not %+v again", i, r, first)
			}
		}
		if rs[1].Err != nil || rs[1].Duplicate {
			t.Errorf("a duplicate failed its neighbour: %+v", rs[1])
		}
		_ = s.reason(rs[3].Err, deny.MessageDuplicateKey)
	}
	check()
	s.restart()
	check()
	if r := s.send("design", d); r.Duplicate {
		t.Error("a key of another sender is no duplicate")
	}
	twice := note("qa", "twice")
	rs := s.Send(t.Context(), "pm", []Draft{twice, twice})
	if rs[0].Duplicate || !rs[1].Duplicate || rs[0].Sequence != rs[1].Sequence {
		t.Errorf("twice in one batch: %+v", rs)
	}
	if n := s.queue("qa").Queued; n != 5 {
		t.Errorf("%d queued, want 5", n)
	}
}

func TestTimeNeverGoesBackInAChannel(t *testing.T) {
	var now atomic.Int64 // ns
	now.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano())
	s := setUp(t, func(c *Config) { c.Clock = func() time.Time { return time.Unix(0, now.Load()).UTC() } })
	last := s.send("pm", note("qa", "0")).Time
	for i, jump := range []time.Duration{time.Hour, -48 * time.Hour, 10 * 365 * 24 * time.Hour, -time.Second, time.Nanosecond} {
		now.Add(int64(jump))
		if i == 2 {
			s.restart()
		}
		r := s.send("qa", note("pm", fmt.Sprint(i)))
		if r.Time.Before(last) || r.Sequence != uint64(i+2) {
			t.Fatalf("after %s: %v is before %v", jump, r, last)
		}
		last = r.Time
	}
	if ds := s.receive("qa", ReceiveRequest{}); len(ds) != 1 {
		t.Fatalf("a jump of the clock holds a message back: %v", ds)
	}
}

func TestAClockJumpDoesNotStretchALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64 // ns
		s := setUp(t, func(c *Config) { c.Clock = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) } })
		s.send("pm", note("qa", "hello"))
		s.receive("qa", ReceiveRequest{Lease: 10 * second})
		jump.Store(int64(-365 * 24 * time.Hour))
		s.restart()
		time.Sleep(12 * second) // lease and backoff
		if ds := s.receive("qa", ReceiveRequest{}); len(ds) != 1 || ds[0].Attempt != 2 {
			t.Fatalf("%+v", ds)
		}
	})
}

func TestThreadsAndReplay(t *testing.T) {
	s := setUp(t)
	root := s.send("pm", post("product", "question"))
	reply := func(from string, to uint64, body string) SendResult {
		d := post("product", body)
		d.ReplyTo = to
		return s.send(from, d)
	}
	a := reply("qa", root.Sequence, "answer")
	s.send("design", post("product", "something else"))
	b := reply("pm", a.Sequence, "thanks")
	batch := []Draft{post("product", "own question"), post("product", "own answer")}
	batch[1].ReplyTo = b.Sequence + 1 // of the same batch
	s.Send(t.Context(), "qa", batch)
	for _, named := range []uint64{root.Sequence, a.Sequence, b.Sequence} {
		p, err := s.Thread(t.Context(), "engineering", ThreadRequest{Channel: "product", Sequence: named})
		if err != nil || p.Next != 0 {
			t.Fatal(p, err)
		}
		if diff := cmp.Diff([]string{"question", "answer", "thanks"}, texts(p)); diff != "" {
			t.Errorf("thread of %d:\n%s", named, diff)
		}
	}
	p, err := s.Thread(t.Context(), "qa", ThreadRequest{Channel: "product", Sequence: b.Sequence + 2})
	if diff := cmp.Diff([]string{"own question", "own answer"}, texts(p)); diff != "" || err != nil {
		t.Error(diff, err)
	}
	// Replay in pages gives all, in order, and touches no delivery.
	var all []uint64
	for from := uint64(1); from != 0; {
		p, err := s.Replay(t.Context(), "qa", ReplayRequest{Channel: "product", From: from, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range p.Messages {
			all = append(all, m.Sequence)
		}
		from = p.Next
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6}, all); diff != "" {
		t.Error(diff)
	}
	_, err = s.Replay(t.Context(), "outsider", ReplayRequest{Channel: "product"})
	_ = s.reason(err, deny.MessageNotAllowed)
	_, err = s.Thread(t.Context(), "outsider", ThreadRequest{Channel: "@pm+qa", Sequence: 1})
	_ = s.reason(err, deny.MessageNotAllowed)
	_, err = s.Thread(t.Context(), "qa", ThreadRequest{Channel: "product", Sequence: 99})
	_ = s.reason(err, deny.MessageInvalid)
}

func texts(p Page) (out []string) {
	for _, m := range p.Messages {
		var s string
		_ = json.Unmarshal(m.Body, &s)
		out = append(out, s)
	}
	return out
}

// TestAWayEndsWithThePolicyThatAllowedIt: what was found once holds for no other
// policy, and not for types that take a permission.
func TestAWayEndsWithThePolicyThatAllowedIt(t *testing.T) {
	s := setUp(t)
	for range 2 {
		s.send("pm", note("qa", "allowed"))
		s.send("pm", post("product", "to three"))
		_ = s.refused("pm", as(note("qa", "no"), PolicyUpdate), deny.MessageNotAllowed)
		_ = s.refused("pm", as(post("product", "no"), GovernanceDirective), deny.MessageNotAllowed)
		_ = s.refused("outsider", note("qa", "no"), deny.MessageNotAllowed)
	}
	p := seven()
	p.Agents["pm"] = AgentPolicy{To: []string{"ops"}, Critical: []Type{PolicyUpdate}}
	p.Channels["product"] = []string{"pm", "ops"}
	if err := s.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = s.refused("pm", note("qa", "no longer"), deny.MessageNotAllowed)
		_ = s.refused("qa", post("product", "no longer"), deny.MessageNotAllowed)
		s.send("pm", post("product", "to one"))
		s.send("pm", as(note("ops", "permitted"), PolicyUpdate))
	}
	if diff := cmp.Diff([]string{"permitted", "permitted", "to one", "to one"}, slices.Sorted(slices.Values(bodies(s.receive("ops", ReceiveRequest{Max: 100}))))); diff != "" {
		t.Error(diff)
	}
	if ds := s.receive("design", ReceiveRequest{Max: 100}); len(ds) != 2 {
		t.Errorf("of a channel that it left design has %v", bodies(ds))
	}
	s.restart() // what was kept in memory is no part of what is on disk
	if got := s.send("pm", note("ops", "again")); got.Sequence != 3 {
		t.Errorf("%+v", got)
	}
}

// Its answer was lost, and the policy changed before it was sent again: it was taken, and is not refused.
func TestWhatWasTakenIsNoLessTakenUnderAnotherPolicy(t *testing.T) {
	s := setUp(t)
	drafts := []Draft{note("qa", "directly"), post("product", "in a channel"), as(note("qa", "critical"), Escalation)}
	var was []SendResult
	for _, d := range drafts {
		was = append(was, s.send("pm", d))
	}
	p := seven()
	p.Agents["pm"] = AgentPolicy{}
	p.Channels["product"] = []string{"qa"}
	delete(p.Agents, "outsider")
	if err := s.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for i, d := range drafts {
			again := s.late("pm", d)[0]
			was[i].Duplicate = true
			if diff := cmp.Diff(was[i], again); diff != "" {
				t.Error(diff)
			}
			other := d
			other.Body = []byte(`"another"`) // under the key of the first
			_ = s.refused("pm", other, deny.MessageNotAllowed)
			fresh := d
			fresh.IdempotencyKey = newKey().String()
			_ = s.refused("pm", fresh, deny.MessageNotAllowed)
		}
		if m, err := s.Metrics(t.Context()); err != nil || m.Refused != 6 || m.Duplicates != 3 {
			t.Errorf("%+v, %v", m, err)
		}
		s.restart() // with the policy that allows them: they are the same for it
		if err := s.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if ds := s.receive("pm", ReceiveRequest{Channel: Direct(System, "pm")}); len(ds) != 0 {
		t.Errorf("its sender was told %v", bodies(ds))
	}
}
