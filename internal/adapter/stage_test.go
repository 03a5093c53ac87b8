package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

// seven is the policy of a team like that of examples/seven.
func seven() Policy {
	all := []string{"orchestrator", "pm", "engineering", "design", "qa", "ops"}
	p := Policy{Team: "seven", Orchestrator: "orchestrator", Agents: map[string]AgentPolicy{}, Channels: map[string][]string{
		"all-agents": all, "product": {"pm", "engineering", "design", "qa"}, "platform": {"orchestrator"},
	}}
	for _, from := range all {
		a := AgentPolicy{Critical: []Type{Escalation}}
		for _, to := range all {
			if to != from {
				a.To = append(a.To, to)
			}
		}
		p.Agents[from] = a
	}
	p.Agents["orchestrator"] = AgentPolicy{To: p.Agents["orchestrator"].To, Critical: []Type{Escalation, PolicyUpdate, GovernanceDirective}}
	p.Agents["outsider"] = AgentPolicy{To: []string{"pm"}}
	return p
}

// stage is an open adapter of one test.
type stage struct {
	*Adapter
	t *testing.T
	Config
}

func setUp(t *testing.T, change ...func(*Config)) *stage {
	t.Helper()
	c := Config{Path: filepath.Join(t.TempDir(), "messages.db"), Policy: seven(), Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	s := &stage{t: t, Config: c}
	s.open()
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (s *stage) open() {
	s.t.Helper()
	a, err := Open(s.t.Context(), s.Config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Adapter = a
}

// restart closes and opens the store.
func (s *stage) restart() {
	s.t.Helper()
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.open()
}

func note(to, body string) Draft {
	raw, _ := json.Marshal(body)
	return Draft{IdempotencyKey: newKey().String(), To: to, Type: "note", Body: raw}
}

func post(channel, body string) Draft {
	d := note("", body)
	d.Channel = channel
	return d
}

func (d Draft) as(t Type) Draft { d.Type = t; return d }

// send sends one and demands that it is taken.
func (s *stage) send(from string, d Draft) SendResult {
	s.t.Helper()
	r := s.Send(s.t.Context(), from, []Draft{d})[0]
	if r.Err != nil {
		s.t.Fatalf("send: %v", r.Err)
	}
	return r
}

func (s *stage) refused(from string, d Draft, want deny.Code) *deny.Reason {
	s.t.Helper()
	return s.reason(s.Send(s.t.Context(), from, []Draft{d})[0].Err, want)
}

func (s *stage) reason(err error, want deny.Code) *deny.Reason {
	s.t.Helper()
	var r *deny.Reason
	if !errors.As(err, &r) || r.Code != want {
		s.t.Fatalf("got %v, want %s", err, want)
	}
	return r
}

func (s *stage) receive(agent string, q ReceiveRequest) []Delivery {
	s.t.Helper()
	ds, err := s.Receive(s.t.Context(), agent, q)
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	return ds
}

func (s *stage) ack(agent string, ds ...Delivery) {
	s.t.Helper()
	for i, err := range s.Ack(s.t.Context(), agent, leases(ds)) {
		if err != nil {
			s.t.Fatalf("ack %s/%d: %v", ds[i].Channel, ds[i].Sequence, err)
		}
	}
}

func leases(ds []Delivery) (out []string) {
	for _, d := range ds {
		out = append(out, d.Lease)
	}
	return out
}

// bodies are the texts of what was delivered, in order.
func bodies(ds []Delivery) (out []string) {
	for _, d := range ds {
		var s string
		_ = json.Unmarshal(d.Body, &s)
		out = append(out, s)
	}
	return out
}

func (s *stage) queue(agent string) QueueState {
	s.t.Helper()
	all, err := s.Queues(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, q := range all {
		if q.Agent == agent {
			return q
		}
	}
	return QueueState{}
}

func (s *stage) dead(recipient string) []DeadLetter {
	s.t.Helper()
	ds, err := s.DeadLetters(s.t.Context(), recipient, 0, maxPage)
	if err != nil {
		s.t.Fatal(err)
	}
	return ds
}

func numbered(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

const second = time.Second
