package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"testing"

	"bulkhead/internal/hub"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/wire"
)

// Whatever a gateway sends, it gets an answer of the protocol, what it publishes
// is said to be of the agent whose socket it came in on, and nobody reads or
// writes what the policy does not give it.
func FuzzRequest(f *testing.F) {
	f.Add("publish", []byte(`{"topic":"builds","key":"k","message":{"a":1}}`))
	f.Add("publish", []byte(`{"topic":"builds","key":"k","message":1,"from":"lead","agent":"lead","Topic":"secret"}`))
	f.Add("publish", []byte(`{"topic":"secret","key":"k","message":1}`))
	f.Add("read", []byte(`{"topic":"secret","after":0,"limit":100}`))
	f.Add("read", []byte(`{"topic":"builds","subscription":"s","limit":1}`))
	f.Add("subscribe", []byte(`{"topic":"builds","subscription":"s","fromStart":true}`))
	f.Add("unsubscribe", []byte(`{"topic":"builds","subscription":"s"}`))
	f.Add("list", []byte(`{}`))
	f.Add("policy", []byte(`{"teams":{}}`))
	f.Add("", []byte(`null`))
	s := New(protocol.Config{Data: f.TempDir()}, io.Discard)
	policy := topic.Policy{
		"builds": {Publish: []string{"ci"}, Read: []string{"ci"}, Storage: 1 << 30},
		"secret": {Publish: []string{"lead"}, Read: []string{"lead"}, Storage: 1 << 20},
	}
	if err := s.SetPolicies(f.Context(), protocol.Policies{Teams: map[string]topic.Policy{"pair": policy}}); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	as := func(agent string) *session {
		return &session{Server: s, member: hub.Member{Team: "pair", Agent: agent}, fresh: make(chan struct{}, 1), heard: map[string]bool{}}
	}
	const hidden = "what lead alone may read"
	first, err := json.Marshal(protocol.Publish{Topic: "secret", Key: "k", Message: json.RawMessage(`"` + hidden + `"`)})
	if err != nil {
		f.Fatal(err)
	}
	if _, _, err := as("lead").do(f.Context(), wire.Message{ID: 1, Verb: protocol.VerbPublish, Body: first}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, verb string, body []byte) {
		answer, out, err := as("ci").do(context.Background(), wire.Message{ID: 1, Verb: verb, Body: body})
		if err != nil {
			return
		}
		raw, jerr := json.Marshal(out)
		if jerr != nil || answer == "" {
			t.Fatalf("%s is answered by %q, %v", verb, answer, jerr)
		}
		if bytes.Contains(raw, []byte(hidden)) || bytes.Contains(raw, []byte(`"secret"`)) {
			t.Fatalf("%s", raw)
		}
		if m, ok := out.(protocol.Messages); ok {
			for _, one := range m.Messages {
				if one.From != "ci" {
					t.Fatalf("%+v is not of ci", one)
				}
			}
		}
		after := int64(0)
		secret, err := s.teams["pair"].shelf.Read(context.Background(), "lead", protocol.Read{Topic: "secret", After: &after, Limit: 2})
		if err != nil || len(secret.Messages) != 1 {
			t.Fatalf("%+v, %v", secret, err)
		}
	})
}

// Who was given a topic to read after a publish into it began, and looked before the
// message was there, hears of it: only what holds at the end is asked.
func TestNewsGoToWhoMayReadNow(t *testing.T) {
	s := New(protocol.Config{Data: t.TempDir()}, io.Discard)
	t.Cleanup(func() { _ = s.Close() })
	allow := func(readers ...string) {
		t.Helper()
		p := topic.Policy{"builds": {Publish: []string{"ci"}, Read: readers, Storage: 1 << 20}}
		if err := s.SetPolicies(t.Context(), protocol.Policies{Teams: map[string]topic.Policy{"pair": p}}); err != nil {
			t.Fatal(err)
		}
	}
	x := &session{Server: s, member: hub.Member{Team: "pair", Agent: "lead"}, fresh: make(chan struct{}, 1), heard: map[string]bool{}}
	s.sessions["pair"] = map[*session]struct{}{x: {}}
	for _, readers := range [][]string{nil, {"lead"}, {"qa"}} {
		allow(readers...)
		s.published("pair", "builds")
		if got, want := x.heard["builds"], len(readers) == 1 && readers[0] == "lead"; got != want {
			t.Errorf("readable by %v: lead heard of it: %v", readers, got)
		}
		clear(x.heard)
	}
	s.published("none", "builds") // a team that has gone meanwhile
}
