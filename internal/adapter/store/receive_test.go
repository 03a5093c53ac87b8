package store

import (
	"testing"

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
