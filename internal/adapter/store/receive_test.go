package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

// Who asks for one channel that it may not read hears which rule says so, also
// when it would wait, and never that there is merely nothing.
func TestReceivingFromAChannelThatIsNotAllowedIsRefused(t *testing.T) {
	s := setUp(t, func(c *Config) { c.Policy.Agents["recluse"] = AgentPolicy{} })
	s.send("pm", post("product", "x"))
	s.Alert(t.Context(), note("recluse", "from the adapter"))
	for _, k := range []struct {
		agent, channel string
		wait           int
		refused        bool
	}{
		{"qa", "product", 0, false},
		{"outsider", "product", 0, true},
		{"outsider", "product", 60, true},
		{"outsider", "no-such-channel", 0, true},
		{"outsider", "@pm+qa", 0, true},
		{"outsider", "@outsider+pm", 0, false}, // the outsider may write to pm
		{"pm", "@outsider+pm", 0, false},
		{"qa", "@pm+qa", 0, false},
		{"qa", "@outsider+qa", 0, true}, // neither may write to the other
		{"recluse", "@qa+recluse", 0, true},
		{"qa", "@bulkhead+qa", 0, false},
		{"qa", "@operator+qa", 0, false},
		{"qa", "@adapter+qa", 0, false},
		{"recluse", "@adapter+recluse", 0, false},
		{"qa", "@qa", 0, true},
		{"qa", "@", 0, true},
		{"qa", "@qa+", 0, true},
		{"qa", "@+qa", 0, true},
		{"qa", "Product", 0, true},
	} {
		got, err := s.Receive(t.Context(), k.agent, ReceiveRequest{Channel: k.channel})
		if k.wait > 0 {
			got, err = s.Receive(t.Context(), k.agent, ReceiveRequest{Channel: k.channel, Wait: maxWait})
		}
		switch {
		case k.refused:
			r := s.reason(err, deny.MessageNotAllowed)
			if r.Why == "" || r.Mend == "" || len(got) > 0 {
				t.Errorf("%s from %s: %+v, %+v", k.agent, k.channel, r, got)
			}
		case err != nil:
			t.Errorf("%s from %s: %v", k.agent, k.channel, err)
		}
	}
}

// What waited for an agent when the manifest took the channel from it is still delivered.
func TestWhatWaitsIsReceivedFromAChannelThatWasLeft(t *testing.T) {
	s := setUp(t)
	s.send("pm", post("product", "before"))
	p := seven()
	p.Channels["product"] = []string{"pm", "engineering", "design"}
	if err := s.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.send("pm", post("product", "after"))
	got := s.receive("qa", ReceiveRequest{Channel: "product"})
	if len(got) != 1 || bodies(got)[0] != "before" {
		t.Fatalf("%+v", got)
	}
	s.ack("qa", got...)
	_, err := s.Receive(t.Context(), "qa", ReceiveRequest{Channel: "product"})
	_ = s.reason(err, deny.MessageNotAllowed)
}

// What is leased before its body is read goes back when the receiver left meanwhile.
func TestAReceiverThatLeavesWhileBodiesAreReadLeasesNothing(t *testing.T) {
	s := setUp(t)
	s.send("pm", note("qa", strings.Repeat("x", smallBody+1)))
	var readers []*conn
	for range readerCount { // a backup may have them as long
		readers = append(readers, <-s.readers)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := s.Receive(ctx, "qa", ReceiveRequest{Lease: maxLease})
		failed <- err
	}()
	for s.counts.Load().Leased == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for _, r := range readers {
		s.readers <- r
	}
	if got := s.receive("qa", ReceiveRequest{}); len(got) != 1 || got[0].Attempt != 1 || len(got[0].Body) < smallBody {
		t.Errorf("%d deliveries", len(got))
	}
}

func TestWhatNobodyTookUsesUpNoTry(t *testing.T) {
	s := setUp(t)
	for _, body := range []string{"1", "2", "3"} {
		s.send("pm", note("qa", body))
	}
	for range 3 * MaxTries {
		got := s.receive("qa", ReceiveRequest{Max: 3})
		if len(got) != 3 || bodies(got)[0] != "1" || got[0].Attempt != 1 || got[2].Attempt != 1 {
			t.Fatalf("%+v", got)
		}
		var back []Refusal
		for _, d := range slices.Backward(got) {
			back = append(back, Refusal{Lease: d.Lease, Untaken: true})
		}
		for _, err := range s.Refuse(t.Context(), "qa", back) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What a transaction counted that failed was not done.
func TestCountsAreOfWhatIsOnDisk(t *testing.T) {
	s := setUp(t)
	s.send("pm", note("qa", "x"))
	got := s.receive("qa", ReceiveRequest{})
	before := *s.counts.Load()
	for range 3 {
		_ = s.do(t.Context(), &op{agent: "qa", cost: 1, run: func(x *txn) {
			if e, err := x.leased("qa", got[0].Lease); err == nil {
				x.acknowledge(e)
			}
			x.fail(errors.New("the disk is gone"))
		}})
	}
	if now := *s.counts.Load(); now.Acknowledged != before.Acknowledged || now.Failed != before.Failed+3 {
		t.Errorf("%+v, before: %+v", now, before)
	}
	s.ack("qa", got...)
	if now := *s.counts.Load(); now.Acknowledged != before.Acknowledged+1 {
		t.Errorf("%+v", now)
	}
}

func TestWhoFollowsTheTailIsForgottenWhenHeLeaves(t *testing.T) {
	s := setUp(t)
	s.send("pm", note("qa", "x"))
	for range 3 {
		for _, wait := range []time.Duration{0, time.Millisecond} {
			if _, err := s.Tail(t.Context(), 0, 10, wait); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Tail(t.Context(), -1, 10, wait); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := -1
	if err := s.do(t.Context(), &op{cost: 1, run: func(x *txn) { n = len(x.tails) }}); err != nil || n != 0 {
		t.Errorf("%d are still waited for, %v", n, err)
	}
}
