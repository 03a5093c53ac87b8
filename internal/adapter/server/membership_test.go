package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// bobLeaves is what boss, the orchestrator, may ask.
var bobLeaves = adapter.ChannelRequest{Channel: "all", Agent: "bob", Change: adapter.Leave, Reason: "a \x1b[31mreason\u202e"}

func code(err error) deny.Code {
	var r *deny.Reason
	if errors.As(err, &r) {
		return r.Code
	}
	return ""
}

func (s *stage) membersOf(t *testing.T, channel string) []string {
	t.Helper()
	all, err := s.operator(t).Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Channel == channel {
			return c.Members
		}
	}
	return nil
}

func TestTheOrchestratorAsksAndRootDecides(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	boss, alice, bob, o := s.agent(t, "boss"), s.agent(t, "alice"), s.agent(t, "bob"), s.operator(t)
	asked, err := boss.RequestMembership(ctx, "alice", bobLeaves) // the name in the call counts for nothing
	if err != nil || asked.By != "boss" || asked.State != adapter.RequestOpen || asked.ChannelRequest != bobLeaves {
		t.Fatalf("%+v, %v", asked, err)
	}
	if again, err := boss.RequestMembership(ctx, "", bobLeaves); err != nil || !again.Duplicate || again.ID != asked.ID {
		t.Errorf("%+v, %v", again, err)
	}
	if l, err := o.Requests(ctx, false); err != nil || len(l) != 1 || l[0].Reason != bobLeaves.Reason || l[0].ID != asked.ID {
		t.Fatalf("%+v, %v", l, err)
	}
	if r := bob.Send(ctx, "", []adapter.Draft{{IdempotencyKey: draft("", "1").IdempotencyKey, Channel: "all", Type: "note", Body: json.RawMessage("1")}}); r[0].Err != nil {
		t.Fatalf("before anybody decided: %v", r[0].Err)
	}
	done, err := o.Decide(ctx, asked.ID, true, "as you wish")
	if err != nil || done.State != adapter.RequestApproved || done.Duplicate {
		t.Fatalf("%+v, %v", done, err)
	}
	if again, err := o.Decide(ctx, asked.ID, true, ""); err != nil || !again.Duplicate {
		t.Errorf("%+v, %v", again, err)
	}
	r := bob.Send(ctx, "", []adapter.Draft{{IdempotencyKey: draft("", "2").IdempotencyKey, Channel: "all", Type: "note", Body: json.RawMessage("2")}})
	if code(r[0].Err) != deny.MessageNotAllowed {
		t.Errorf("after it left: %v", r[0].Err)
	}
	if _, err := bob.Replay(ctx, "", adapter.ReplayRequest{Channel: "all", From: 1}); code(err) != deny.MessageNotAllowed {
		t.Errorf("it reads on: %v", err)
	}
	if diff := s.membersOf(t, "all"); !slices.Equal(diff, []string{"alice", "boss"}) {
		t.Errorf("%q", diff)
	}
	got, err := boss.Receive(ctx, "", adapter.ReceiveRequest{Channel: adapter.Direct(adapter.System, "boss")})
	if err != nil || len(got) != 1 || got[0].Type != adapter.ChannelDecided || !strings.Contains(string(got[0].Body), `"decision":"approved"`) || !strings.Contains(string(got[0].Body), "as you wish") {
		t.Errorf("who asked: %+v, %v", got, err)
	}
	got, err = bob.Receive(ctx, "", adapter.ReceiveRequest{Channel: adapter.Direct(adapter.System, "bob")})
	if err != nil || len(got) != 1 || strings.Contains(string(got[0].Body), "as you wish") || strings.Contains(string(got[0].Body), "reason") {
		t.Errorf("who left: %+v, %v", got, err)
	}
	if _, err := alice.Receive(ctx, "", adapter.ReceiveRequest{Channel: "secret", Wait: time.Minute}); code(err) != deny.MessageNotAllowed {
		t.Errorf("from a channel that there is not: %v", err)
	}
	text, err := o.Metrics(ctx)
	if err != nil || !strings.Contains(text, "bulkhead_adapter_channel_requests_open 0") || !strings.Contains(text, "bulkhead_adapter_channel_changes 1") {
		t.Error(text, err)
	}
	var said []string
	for _, r := range s.records(t) {
		if r.Kind == record.Message && r.Target == "channel request" && r.Verdict == record.Allowed {
			said = append(said, r.Agent+": "+r.Detail)
		}
	}
	if want := []string{"boss: request 1: bob leaves all; an operator decides", "boss: request 1: bob leaves all, approved by an operator"}; !slices.Equal(said, want) {
		t.Errorf("on record: %q", said)
	}
}

// raw is an agent's connection on which anything can be said.
func (s *stage) raw(t *testing.T, name string) *wire.Conn {
	t.Helper()
	var c net.Conn
	var err error
	as(t, map[string]int{"alice": alice, "bob": bob, "boss": boss}[name], func() { c, err = net.Dial("unix", s.socket(name)) })
	if err != nil {
		t.Fatal(err)
	}
	w := wire.New(c.(*net.UnixConn))
	t.Cleanup(func() { _ = w.Close() })
	_ = w.Unix().SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := w.Greet(protocol.Name, protocol.Version); err != nil {
		t.Fatal(err)
	}
	if err := w.Send(1, protocol.VerbAuth, protocol.Auth{Token: "token of " + name}); err != nil {
		t.Fatal(err)
	}
	if m, _, err := w.Recv(); err != nil || m.Verb != protocol.VerbOK {
		t.Fatalf("%+v, %v", m, err)
	}
	return w
}

// An agent that speaks to the adapter itself, past its gateway, approves nothing:
// neither by the operator's verbs nor by another's name.
func TestNoAgentDecides(t *testing.T) {
	s := start(t)
	before := s.membersOf(t, "all")
	asked, err := s.agent(t, "boss").RequestMembership(t.Context(), "", bobLeaves)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"boss", "alice", "bob"} {
		w := s.raw(t, name)
		for i, k := range []struct {
			verb string
			body any
			code deny.Code
		}{
			{protocol.VerbDecide, protocol.Decision{ID: asked.ID, Approve: true}, deny.MessageInvalid},
			{protocol.VerbDecide, protocol.Decision{ID: asked.ID}, deny.MessageInvalid},
			{protocol.VerbRequests, protocol.RequestsQuery{All: true}, deny.MessageInvalid},
			{protocol.VerbMembers, struct{}{}, deny.MessageInvalid},
			{protocol.VerbPolicy, adapter.Policy{Team: "t"}, deny.MessageInvalid},
			{protocol.VerbRequested, asked, deny.MessageInvalid},
			{protocol.VerbRequest, 7, deny.MessageInvalid},
		} {
			id := uint64(10 + i)
			if err := w.Send(id, k.verb, k.body); err != nil {
				t.Fatal(err)
			}
			m, _, err := w.Recv()
			var r deny.Reason
			if err != nil || m.ID != id || m.Verb != protocol.VerbDenied || json.Unmarshal(m.Body, &r) != nil || r.Code != k.code {
				t.Errorf("%s: %s was answered %s %s, %v", name, k.verb, m.Verb, m.Body, err)
			}
		}
		// More fields than a request has change nothing of it.
		if err := w.Send(30, protocol.VerbRequest, map[string]any{
			"channel": "all", "agent": "bob", "change": "leave", "reason": "x", "id": asked.ID, "by": "operator", "state": "approved", "approve": true,
		}); err != nil {
			t.Fatal(err)
		}
		m, _, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if name != "boss" {
			var r deny.Reason
			if m.Verb != protocol.VerbDenied || json.Unmarshal(m.Body, &r) != nil || r.Code != deny.MessageNotAllowed || !strings.Contains(r.Why, "only the orchestrator, boss") {
				t.Errorf("%s: %s %s", name, m.Verb, m.Body)
			}
			continue
		}
		var r adapter.MembershipRequest
		if m.Verb != protocol.VerbRequested || json.Unmarshal(m.Body, &r) != nil || r.State != adapter.RequestOpen || r.By != "boss" || !r.Duplicate {
			t.Errorf("%s: %s %s", name, m.Verb, m.Body)
		}
	}
	if after := s.membersOf(t, "all"); !slices.Equal(before, after) {
		t.Errorf("members %q became %q", before, after)
	}
	if l, err := s.operator(t).Requests(t.Context(), false); err != nil || len(l) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	// The operator's socket hears no agent, whatever token it shows.
	for _, id := range []int{alice, boss, 1} {
		if c, err := s.dial(t, id, protocol.OperatorListener, "token of boss"); err == nil {
			if _, err := c.RequestMembership(context.Background(), "", bobLeaves); err == nil {
				t.Errorf("id %d is heard at the operator's socket", id)
			}
		}
	}
	denied := false
	for _, r := range s.records(t) {
		denied = denied || r.Target == "channel request" && r.Verdict == record.Denied && r.Agent == "alice" && r.Reason.Code == deny.MessageNotAllowed
	}
	if !denied {
		t.Error("who may not ask and did is not on record")
	}
}
