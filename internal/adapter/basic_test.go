package adapter

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAMessageIsDeliveredUntilItIsAcknowledged(t *testing.T) {
	s := setUp(t)
	sent := s.send("pm", note("qa", "hello"))
	if sent.Sequence != 1 || sent.Channel != "@pm+qa" || sent.Time.IsZero() {
		t.Fatalf("%+v", sent)
	}
	got := s.receive("qa", ReceiveRequest{})
	if len(got) != 1 || got[0].From != "pm" || got[0].To != "qa" || got[0].Sequence != 1 || got[0].Attempt != 1 || !got[0].Time.Equal(sent.Time) {
		t.Fatalf("%+v", got)
	}
	if again := s.receive("qa", ReceiveRequest{}); len(again) != 0 {
		t.Fatalf("leased twice: %+v", again)
	}
	s.restart()
	s.ack("qa", got...)
	s.restart()
	if again := s.receive("qa", ReceiveRequest{}); len(again) != 0 {
		t.Fatalf("delivered after it was acknowledged: %+v", again)
	}
}

func TestAChannelGoesToEveryMemberButTheSender(t *testing.T) {
	s := setUp(t)
	for _, n := range numbered(3) {
		s.send("pm", post("product", n))
	}
	for agent := range s.Policy.Agents {
		want := numbered(3)
		if agent == "pm" || !slices.Contains(s.Policy.Channels["product"], agent) {
			want = nil
		}
		if diff := cmp.Diff(want, bodies(s.receive(agent, ReceiveRequest{}))); diff != "" {
			t.Errorf("%s:\n%s", agent, diff)
		}
	}
}

func TestAWaitingReceiverGetsTheMessageAtOnce(t *testing.T) {
	s := setUp(t)
	got := make(chan []Delivery)
	go func() {
		ds, err := s.Receive(t.Context(), "qa", ReceiveRequest{Wait: maxWait})
		if err != nil {
			t.Error(err)
		}
		got <- ds
	}()
	s.send("pm", note("qa", "hello"))
	if ds := <-got; len(ds) != 1 {
		t.Fatalf("%+v", ds)
	}
}
