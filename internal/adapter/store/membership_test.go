package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

func joins(channel, agent string) ChannelRequest {
	return ChannelRequest{Channel: channel, Agent: agent, Change: Join, Reason: "it works on this now"}
}

func leaves(channel, agent string) ChannelRequest {
	q := joins(channel, agent)
	q.Change = Leave
	return q
}

// ask has the orchestrator ask and demands that it is taken.
func (s *stage) ask(q ChannelRequest) MembershipRequest {
	s.t.Helper()
	r, err := s.RequestMembership(s.t.Context(), "orchestrator", q)
	if err != nil {
		s.t.Fatalf("%+v: %v", q, err)
	}
	return r
}

// approve has it asked for and approved.
func (s *stage) approve(q ChannelRequest) MembershipRequest {
	s.t.Helper()
	r, err := s.Decide(s.t.Context(), s.ask(q).ID, true, "")
	if err != nil || r.State != RequestApproved {
		s.t.Fatalf("%+v: %+v, %v", q, r, err)
	}
	return r
}

func (s *stage) members(channel string) []string {
	s.t.Helper()
	all, err := s.Members(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range all {
		if c.Channel == channel {
			return c.Members
		}
	}
	return nil
}

// asked are the requests that wait, in words.
func (s *stage) asked(all bool) (out []string) {
	s.t.Helper()
	rs, err := s.Requests(s.t.Context(), all)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%d %s %s %s %s", r.ID, r.Agent, r.Change, r.Channel, r.State))
	}
	return out
}

// decisions are the notices about requests that wait for an agent; they are acknowledged.
func (s *stage) decisions(agent string) (out []ChannelDecision) {
	s.t.Helper()
	ds := s.receive(agent, ReceiveRequest{Channel: Direct(System, agent), Max: maxReceive})
	for _, d := range ds {
		var x ChannelDecision
		if err := json.Unmarshal(d.Body, &x); err != nil || d.Type != ChannelDecided || d.From != System {
			s.t.Fatalf("%+v: %v", d, err)
		}
		out = append(out, x)
	}
	s.ack(agent, ds...)
	return out
}

// texts are the bodies that an agent reads again of a channel.
func (s *stage) texts(agent, channel string, from uint64) (out []string) {
	s.t.Helper()
	p, err := s.Replay(s.t.Context(), agent, ReplayRequest{Channel: channel, From: from})
	if err != nil {
		s.t.Fatalf("replay by %s: %v", agent, err)
	}
	for _, m := range p.Messages {
		var text string
		_ = json.Unmarshal(m.Body, &text)
		out = append(out, text)
	}
	return out
}

func TestWhoJoinsGetsWhatIsSentFromThenOnAndNoMore(t *testing.T) {
	s := setUp(t)
	s.send("pm", post("product", "secret of old"))
	old := s.send("pm", Draft{IdempotencyKey: newKey().String(), Channel: "product", Type: "question", Body: json.RawMessage(`"old question"`)})
	_ = s.refused("ops", post("product", "not yet"), deny.MessageNotAllowed)
	asked := s.ask(joins("product", "ops"))
	_ = s.refused("ops", post("product", "asked is not approved"), deny.MessageNotAllowed)
	if _, err := s.Replay(t.Context(), "ops", ReplayRequest{Channel: "product", From: 1}); err == nil {
		t.Error("asked is not approved, and it reads the channel")
	}
	if _, err := s.Decide(t.Context(), asked.ID, true, "fine"); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		s.send("pm", post("product", "to ops as well"))
		reply := post("product", "an answer to what was before")
		reply.ReplyTo = old.Sequence
		s.send("qa", reply)
		got := s.receive("ops", ReceiveRequest{Channel: "product"})
		if diff := cmp.Diff([]string{"to ops as well", "an answer to what was before"}, bodies(got)); diff != "" {
			t.Errorf("delivered:\n%s", diff)
		}
		s.ack("ops", got...)
		if sent := s.send("ops", post("product", "from ops")); sent.Channel != "product" {
			t.Errorf("%+v", sent)
		}
	}
	check()
	if diff := cmp.Diff([]string{"to ops as well", "an answer to what was before", "from ops"}, s.texts("ops", "product", 1)); diff != "" {
		t.Errorf("read again:\n%s", diff)
	}
	// A thread is shown from the joining on, and not at all by what was before.
	p, err := s.Thread(t.Context(), "ops", ThreadRequest{Channel: "product", Sequence: old.Sequence + 2})
	if err != nil || len(p.Messages) != 1 || p.Messages[0].Sequence != old.Sequence+2 {
		t.Errorf("the thread: %+v, %v", p, err)
	}
	_, err = s.Thread(t.Context(), "ops", ThreadRequest{Channel: "product", Sequence: old.Sequence})
	if r := s.reason(err, deny.MessageNotAllowed); !strings.Contains(r.Why, "from message 3 on") {
		t.Error(r.Why)
	}
	cs, err := s.Channels(t.Context(), "ops")
	i := slices.IndexFunc(cs, func(c ChannelState) bool { return c.Channel == "product" })
	if err != nil || i < 0 || cs[i].From != 3 || !slices.Contains(cs[i].Members, "ops") {
		t.Errorf("%+v, %v", cs, err)
	}
	want := ChannelDecision{Request: asked.ID, Channel: "product", Agent: "ops", Change: Join, Decision: RequestApproved, From: 3}
	if diff := cmp.Diff([]ChannelDecision{want}, s.decisions("ops")); diff != "" {
		t.Errorf("the agent is told:\n%s", diff)
	}
	want.Why = "fine"
	if diff := cmp.Diff([]ChannelDecision{want}, s.decisions("orchestrator")); diff != "" {
		t.Errorf("who asked is told:\n%s", diff)
	}
	s.restart()
	check()
	if all := s.texts("ops", "product", 1); all[0] != "to ops as well" {
		t.Errorf("after a restart it reads %q", all)
	}
	if rest := s.decisions("orchestrator"); rest != nil {
		t.Errorf("told twice: %+v", rest)
	}
}

func TestWhoLeavesKeepsWhatWasDeliveredAndGetsNoMore(t *testing.T) {
	s := setUp(t)
	s.send("pm", post("product", "leased"))
	got := s.receive("qa", ReceiveRequest{Channel: "product"})
	s.send("pm", post("product", "waits"))
	r := s.approve(leaves("product", "qa"))
	for range 2 {
		s.send("pm", post("product", "after it left"))
		refused := s.refused("qa", post("product", "from outside"), deny.MessageNotAllowed)
		if !strings.Contains(refused.Why, fmt.Sprintf("approved request %d", r.ID)) || !strings.Contains(refused.Mend, "msg_channel_request") {
			t.Errorf("%+v", refused)
		}
		_, err := s.Replay(t.Context(), "qa", ReplayRequest{Channel: "product", From: 1})
		_ = s.reason(err, deny.MessageNotAllowed)
		_, err = s.Thread(t.Context(), "qa", ThreadRequest{Channel: "product", Sequence: 1})
		_ = s.reason(err, deny.MessageNotAllowed)
		if cs, err := s.Channels(t.Context(), "qa"); err != nil || slices.ContainsFunc(cs, func(c ChannelState) bool { return c.Channel == "product" }) {
			t.Errorf("%+v, %v", cs, err)
		}
		s.restart()
	}
	s.ack("qa", got...)
	rest := s.receive("qa", ReceiveRequest{Channel: "product"})
	if diff := cmp.Diff([]string{"waits"}, bodies(rest)); diff != "" {
		t.Errorf("what waited when it left:\n%s", diff)
	}
	s.ack("qa", rest...)
	_, err := s.Receive(t.Context(), "qa", ReceiveRequest{Channel: "product"})
	_ = s.reason(err, deny.MessageNotAllowed)
	// Who comes back does not get, nor read, what was said while it was away.
	s.approve(joins("product", "qa"))
	s.send("pm", post("product", "welcome back"))
	if diff := cmp.Diff([]string{"welcome back"}, bodies(s.receive("qa", ReceiveRequest{Channel: "product"}))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"welcome back"}, s.texts("qa", "product", 1)); diff != "" {
		t.Errorf("read again:\n%s", diff)
	}
}

// A change and what is sent in the same transaction agree on who was a member.
func TestAChangeHoldsForWhatFollowsItInTheSameTransaction(t *testing.T) {
	s := setUp(t)
	in, out := s.ask(joins("product", "ops")), s.ask(leaves("product", "qa"))
	d, r := check("pm", ptr(post("product", "just after")), false)
	if r != nil {
		t.Fatal(r)
	}
	var sent SendResult
	if err := s.do(t.Context(), &op{cost: 1, run: func(t *txn) {
		t.close(t.requests[in.ID], RequestApproved, "")
		t.close(t.requests[out.ID], RequestApproved, "")
		t.after = append(t.after, s.inForce)
		sent = t.send("pm", &d, false)
	}}); err != nil || sent.Err != nil {
		t.Fatal(err, sent.Err)
	}
	if got := s.receive("ops", ReceiveRequest{Channel: "product"}); len(got) != 1 {
		t.Errorf("who had just joined got %+v", got)
	}
	if n := s.queue("qa").Senders["pm"]; n != 0 {
		t.Errorf("%d messages wait for who had just left", n)
	}
}

func ptr[T any](v T) *T { return &v }

func TestOnlyTheOrchestratorMayAsk(t *testing.T) {
	s := setUp(t)
	for _, agent := range []string{"pm", "qa", "outsider", "nobody", "", System, OperatorName, AlertName} {
		// An agent that may not ask learns nothing of what there is either.
		for _, q := range []ChannelRequest{joins("platform", agent), joins("no-such-channel", "nobody"), {}} {
			_, err := s.RequestMembership(t.Context(), agent, q)
			if r := s.reason(err, deny.MessageNotAllowed); !strings.Contains(r.Why, "only the orchestrator, orchestrator, may ask") || r.Mend == "" {
				t.Errorf("%q: %+v", agent, r)
			}
		}
	}
	if got := s.asked(true); got != nil {
		t.Errorf("%q", got)
	}
	p := seven()
	p.Orchestrator = ""
	if err := s.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	_, err := s.RequestMembership(t.Context(), "orchestrator", joins("platform", "pm"))
	if r := s.reason(err, deny.MessageNotAllowed); !strings.Contains(r.Why, "names no orchestrator") {
		t.Error(r.Why)
	}
}

func TestARequestSaysWhatIsWrongWithIt(t *testing.T) {
	s := setUp(t)
	for name, k := range map[string]struct {
		q     ChannelRequest
		field string
	}{
		"no channel":                {joins("", "pm"), "channel"},
		"a direct channel":          {joins("@pm+qa", "ops"), "channel"},
		"a channel that is none":    {joins("no-such-channel", "pm"), "channel"},
		"no agent":                  {joins("product", ""), "agent"},
		"an agent that is none":     {joins("product", "nobody"), "agent"},
		"an agent with a space":     {joins("product", "pm qa"), "agent"},
		"the adapter":               {joins("product", System), "agent"},
		"the operator":              {joins("product", OperatorName), "agent"},
		"a member joins":            {joins("product", "pm"), "change"},
		"who is none leaves":        {leaves("product", "ops"), "change"},
		"another change":            {ChannelRequest{Channel: "product", Agent: "ops", Change: "approve", Reason: "x"}, "change"},
		"no reason":                 {ChannelRequest{Channel: "product", Agent: "ops", Change: Join}, "reason"},
		"a blank reason":            {ChannelRequest{Channel: "product", Agent: "ops", Change: Join, Reason: " \n"}, "reason"},
		"too long a reason":         {ChannelRequest{Channel: "product", Agent: "ops", Change: Join, Reason: strings.Repeat("x", adapter.MaxReason+1)}, "reason"},
		"a reason that is no UTF-8": {ChannelRequest{Channel: "product", Agent: "ops", Change: Join, Reason: "\xff"}, "reason"},
	} {
		_, err := s.RequestMembership(t.Context(), "orchestrator", k.q)
		if r := s.reason(err, deny.MessageInvalid); len(r.Fields) != 1 || r.Fields[0].Name != k.field {
			t.Errorf("%s: %+v", name, r.Fields)
		}
	}
}

func TestARequestIsTakenOnceAndManyAreHeldBack(t *testing.T) {
	s := setUp(t, func(c *Config) {
		for i := range adapter.MaxRequests + 1 {
			c.Policy.Agents[fmt.Sprintf("extra%d", i)] = AgentPolicy{}
		}
	})
	first := s.ask(joins("product", "extra0"))
	if first.Duplicate || first.ID != 1 || first.By != "orchestrator" || first.State != RequestOpen || first.Expires.Sub(first.At) != adapter.RequestLife {
		t.Errorf("%+v", first)
	}
	for range 3 {
		q := joins("product", "extra0")
		q.Reason = "in other words"
		if again := s.ask(q); again.ID != first.ID || !again.Duplicate || again.Reason != first.Reason {
			t.Errorf("%+v", again)
		}
		s.restart()
	}
	for i := 1; i < adapter.MaxRequests; i++ {
		s.ask(joins("product", fmt.Sprintf("extra%d", i)))
	}
	_, err := s.RequestMembership(t.Context(), "orchestrator", joins("product", "ops"))
	if r := s.reason(err, deny.MessageQuota); r.RetryAfter == 0 {
		t.Errorf("%+v", r)
	}
	if again := s.ask(joins("product", "extra0")); !again.Duplicate { // still answered
		t.Errorf("%+v", again)
	}
	if _, err := s.Decide(t.Context(), 1, false, "no"); err != nil {
		t.Fatal(err)
	}
	s.ask(joins("product", "ops"))
	if got := s.asked(false); len(got) != adapter.MaxRequests {
		t.Errorf("%d wait: %q", len(got), got)
	}
	// However often it asks, what is over does not pile up.
	for range adapter.KeptDecisions + 2*adapter.MaxRequests {
		if _, err := s.Decide(t.Context(), s.ask(joins("product", "ops")).ID, false, ""); err != nil {
			t.Fatal(err)
		}
		s.decisions("orchestrator")
	}
	if n := len(s.asked(true)); n > adapter.KeptDecisions+2*adapter.MaxRequests {
		t.Errorf("%d requests are kept", n)
	}
}

func TestADecisionIsMadeOnce(t *testing.T) {
	s := setUp(t)
	r := s.ask(joins("product", "ops"))
	refused, err := s.Decide(t.Context(), r.ID, false, "not now")
	if err != nil || refused.State != RequestRefused || refused.Why != "not now" || refused.Decided.IsZero() {
		t.Fatalf("%+v, %v", refused, err)
	}
	_ = s.refused("ops", post("product", "x"), deny.MessageNotAllowed)
	if again, err := s.Decide(t.Context(), r.ID, false, "again"); err != nil || !again.Duplicate || again.Why != "not now" {
		t.Errorf("%+v, %v", again, err)
	}
	_, err = s.Decide(t.Context(), r.ID, true, "")
	if refused := s.reason(err, deny.MessageInvalid); !strings.Contains(refused.Fields[0].Why, "refused already") {
		t.Errorf("%+v", refused)
	}
	for _, id := range []int64{0, -1, 99, 1 << 62} {
		_, err := s.Decide(t.Context(), id, true, "")
		_ = s.reason(err, deny.MessageInvalid)
	}
	if _, err := s.Decide(t.Context(), r.ID, true, strings.Repeat("x", adapter.MaxReason+1)); err == nil {
		t.Error("a reason without end was taken")
	}
	if diff := cmp.Diff([]ChannelDecision{{Request: 1, Channel: "product", Agent: "ops", Change: Join, Decision: RequestRefused, Why: "not now"}}, s.decisions("orchestrator")); diff != "" {
		t.Error(diff)
	}
	if got := s.decisions("ops"); got != nil {
		t.Errorf("who was to join is told of a refusal: %+v", got)
	}
	// It may ask again, under another number.
	if anew := s.ask(joins("product", "ops")); anew.ID == r.ID || anew.Duplicate {
		t.Errorf("%+v", anew)
	}
}

func TestARequestThatNobodyDecidesIsOver(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	s := setUp(t, func(c *Config) { c.Clock = func() time.Time { return now } })
	r := s.ask(joins("product", "ops"))
	now = now.Add(adapter.RequestLife - time.Second)
	if got := s.asked(false); len(got) != 1 {
		t.Fatalf("%q", got)
	}
	now = now.Add(time.Second)
	_, err := s.Decide(t.Context(), r.ID, true, "")
	if refused := s.reason(err, deny.MessageInvalid); !strings.Contains(refused.Fields[0].Why, "expired already") {
		t.Errorf("%+v", refused)
	}
	if got := s.members("product"); slices.Contains(got, "ops") {
		t.Errorf("%q", got)
	}
	if got := s.decisions("orchestrator"); len(got) != 1 || got[0].Decision != RequestExpired {
		t.Errorf("%+v", got)
	}
	if got := s.asked(true); len(got) != 1 || !strings.HasSuffix(got[0], "expired") {
		t.Errorf("%q", got)
	}
	// Also one that is over when the adapter starts.
	s.ask(joins("product", "ops"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(adapter.RequestLife)
	s.open()
	if got := s.asked(false); got != nil {
		t.Errorf("%q", got)
	}
}

// The manifest wins: what it says of a channel anew ends what was approved beside
// it, and what is asked for that means nothing any more.
func TestTheManifestWinsOverWhatWasApproved(t *testing.T) {
	set := func(s *stage, running bool, change func(p *Policy)) {
		s.t.Helper()
		p := clonePolicy(&s.Policy)
		change(&p)
		s.Policy = p
		if running {
			if err := s.SetPolicy(s.t.Context(), p); err != nil {
				s.t.Fatal(err)
			}
			return
		}
		s.restart()
	}
	for _, running := range []bool{true, false} {
		t.Run(map[bool]string{true: "while it runs", false: "at its start"}[running], func(t *testing.T) {
			s := setUp(t)
			s.send("pm", post("product", "before"))
			s.approve(joins("product", "ops"))
			s.approve(leaves("product", "qa"))
			s.approve(joins("platform", "pm"))
			still := []string{"design", "engineering", "ops", "pm"}
			set(s, running, func(p *Policy) { p.Channels["all-agents"] = p.Channels["all-agents"][1:] }) // another channel
			set(s, running, func(p *Policy) { slices.Reverse(p.Channels["product"]) })                   // another order
			if diff := cmp.Diff(still, s.members("product")); diff != "" {
				t.Errorf("after a change elsewhere:\n%s", diff)
			}
			set(s, running, func(p *Policy) {
				p.Channels["product"] = slices.DeleteFunc(slices.Clone(p.Channels["product"]), func(a string) bool { return a == "design" })
			})
			if diff := cmp.Diff([]string{"engineering", "pm", "qa"}, s.members("product")); diff != "" {
				t.Errorf("after the manifest changed the channel:\n%s", diff)
			}
			if diff := cmp.Diff([]string{"orchestrator", "pm"}, s.members("platform")); diff != "" {
				t.Errorf("the other channel:\n%s", diff)
			}
			_ = s.refused("ops", post("product", "x"), deny.MessageNotAllowed)
			if got := s.texts("qa", "product", 1); len(got) != 1 {
				t.Errorf("qa, a member by the manifest again, reads %q", got)
			}
			// It does not come back with the former manifest.
			set(s, running, func(p *Policy) { p.Channels["product"] = append(p.Channels["product"], "design") })
			s.restart()
			if diff := cmp.Diff([]string{"design", "engineering", "pm", "qa"}, s.members("product")); diff != "" {
				t.Error(diff)
			}
			// An agent that goes takes what was approved for it along, and so does a channel.
			set(s, running, func(p *Policy) {
				delete(p.Channels, "platform")
			})
			set(s, running, func(p *Policy) { p.Channels["platform"] = []string{"orchestrator"} })
			if diff := cmp.Diff([]string{"orchestrator"}, s.members("platform")); diff != "" {
				t.Error(diff)
			}
			if all, err := s.Members(t.Context()); err != nil || slices.ContainsFunc(all, func(c ChannelMembers) bool { return len(c.Changes) > 0 }) {
				t.Errorf("%+v, %v", all, err)
			}
			s.decisions("orchestrator")
			// What waits is over when it is moot, or when who asked may not ask any more.
			s.ask(joins("product", "ops"))
			s.ask(joins("platform", "pm"))
			set(s, running, func(p *Policy) { p.Channels["product"] = append(slices.Clone(p.Channels["product"]), "ops") })
			if diff := cmp.Diff([]string{"5 pm join platform open"}, s.asked(false)); diff != "" {
				t.Error(diff)
			}
			set(s, running, func(p *Policy) { p.Orchestrator = "pm" })
			if got := s.asked(false); got != nil {
				t.Errorf("%q", got)
			}
			_, err := s.Decide(t.Context(), 5, true, "")
			_ = s.reason(err, deny.MessageInvalid)
			got := s.decisions("orchestrator")
			if len(got) != 2 || got[0].Decision != RequestOvertaken || got[1].Decision != RequestOvertaken || !strings.Contains(got[0].Why, "the manifest changed") {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestAnAgentThatGoesTakesItsApprovalsAlong(t *testing.T) {
	s := setUp(t)
	s.approve(joins("product", "outsider"))
	p := seven()
	delete(p.Agents, "outsider")
	if err := s.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := s.SetPolicy(t.Context(), seven()); err != nil {
		t.Fatal(err)
	}
	if got := s.members("product"); slices.Contains(got, "outsider") {
		t.Errorf("an agent of the same name is a member: %q", got)
	}
	_ = s.refused("outsider", post("product", "x"), deny.MessageNotAllowed)
}

// What of a transaction that fails is in force nowhere, in memory neither.
func TestAnApprovalThatCannotBeWrittenIsNotInForce(t *testing.T) {
	s := setUp(t)
	r := s.ask(joins("product", "ops"))
	if err := s.do(t.Context(), &op{cost: 1, run: func(t *txn) {
		t.close(t.requests[r.ID], RequestApproved, "")
		t.after = append(t.after, s.inForce)
		t.exec("INSERT INTO no_such_table VALUES (1)")
	}}); err == nil {
		t.Fatal("it was written")
	}
	_ = s.refused("ops", post("product", "x"), deny.MessageNotAllowed)
	if _, err := s.Replay(t.Context(), "ops", ReplayRequest{Channel: "product", From: 1}); err == nil {
		t.Error("it reads the channel")
	}
	if got := s.asked(false); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if _, err := s.Decide(t.Context(), r.ID, true, ""); err != nil {
		t.Fatal(err)
	}
	s.send("ops", post("product", "x"))
}

func TestRepairKeepsWhatWasApproved(t *testing.T) {
	s := setUp(t)
	s.approve(joins("product", "ops"))
	s.approve(leaves("product", "qa"))
	s.ask(joins("platform", "pm"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Repair(context.Background(), s.Path); err != nil || len(r.Lost) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	s.open()
	if diff := cmp.Diff([]string{"design", "engineering", "ops", "pm"}, s.members("product")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"3 pm join platform open"}, s.asked(false)); diff != "" {
		t.Error(diff)
	}
	if r := s.ask(joins("platform", "qa")); r.ID != 4 {
		t.Errorf("a number was given again: %+v", r)
	}
}

// FuzzChannelRequest asks for anything. What is taken is what was asked for, and
// nobody's membership changes by it.
func FuzzChannelRequest(f *testing.F) {
	for _, s := range []string{
		`{"channel":"product","agent":"ops","change":"join","reason":"\u001b[31mred"}`,
		`{"channel":"all-agents","agent":"qa","change":"leave","reason":"x","state":"approved","by":"operator"}`,
		`{"channel":"@pm+qa","agent":"@","change":"approve","reason":""}`,
	} {
		f.Add("orchestrator", []byte(s))
		f.Add("pm", []byte(s))
	}
	a := fuzzed(f)
	want := seven()
	f.Fuzz(func(t *testing.T, by string, raw []byte) {
		var q ChannelRequest
		if json.Unmarshal(raw, &q) != nil {
			return
		}
		r, err := a.RequestMembership(t.Context(), by, q)
		if err == nil {
			if by != "orchestrator" || r.By != by || r.State != RequestOpen || !r.Duplicate && r.ChannelRequest != q {
				t.Errorf("%+v by %q became %+v", q, by, r)
			}
			if _, err := a.Decide(t.Context(), r.ID, false, ""); err != nil {
				t.Error(err)
			}
			if got, err := a.Receive(t.Context(), "orchestrator", ReceiveRequest{Max: maxReceive}); err == nil {
				a.Ack(t.Context(), "orchestrator", leases(got))
			}
		}
		now := a.policy.Load().Channels
		if !maps.EqualFunc(now, want.Channels, func(x, y []string) bool { return slices.Equal(x, y) }) {
			t.Errorf("%+v by %q changed who is in channels: %v", q, by, now)
		}
	})
}
