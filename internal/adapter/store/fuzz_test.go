package store

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"bulkhead/internal/jsonscan"
)

// fuzzed opens one adapter for a whole fuzzing process.
func fuzzed(f *testing.F) *Adapter {
	f.Helper()
	a, err := Open(f.Context(), Config{Path: filepath.Join(f.TempDir(), "messages.db"), Policy: seven(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = a.Close() })
	return a
}

// FuzzEnvelope sends whatever JSON makes a draft. What is taken must be read
// back as it was sent, from the authenticated sender.
func FuzzEnvelope(f *testing.F) {
	for _, s := range []string{
		`{"idempotency_key":"1b4e28ba-2fa1-11d2-883f-0016d3cca427","to":"qa","type":"note","body":{"a":[1,"x",null]}}`,
		`{"idempotency_key":"1B4E28BA-2FA1-11D2-883F-0016D3CCA428","channel":"product","type":"escalation","priority":"high","reply_to_sequence_id":1,"body":""}`,
		`{"to":"@pm+qa","channel":"@","type":"delivery_failed","from":"operator","body":0}`,
		`{"idempotency_key":"zzzzzzzz-2fa1-11d2-883f-0016d3cca427","to":"bulkhead","type":"A","priority":"now","reply_to_sequence_id":18446744073709551615}`,
	} {
		f.Add([]byte(s))
	}
	a := fuzzed(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var d Draft
		if json.Unmarshal(raw, &d) != nil {
			return
		}
		r := a.Send(t.Context(), "pm", []Draft{d})[0]
		if r.Err != nil || r.Duplicate {
			return
		}
		p, err := a.Replay(t.Context(), "pm", ReplayRequest{Channel: r.Channel, From: r.Sequence, Limit: 1})
		if err != nil || len(p.Messages) != 1 {
			t.Fatalf("%+v %v", p, err)
		}
		m := p.Messages[0]
		if m.From != "pm" || m.Type != d.Type || !jsonscan.Same(m.Body, d.Body) || m.ReplyTo != d.ReplyTo || m.Channel != d.Channel && m.To != d.To {
			t.Errorf("%+v became %+v", d, m)
		}
		if got, err := a.Receive(t.Context(), "qa", ReceiveRequest{Max: maxReceive}); err == nil {
			a.Ack(t.Context(), "qa", leases(got))
		}
	})
}

// FuzzReads asks for pages with any numbers.
func FuzzReads(f *testing.F) {
	f.Add("product", uint64(1), uint64(0), 10)
	f.Add("@pm+qa", uint64(1)<<63, uint64(1)<<62, -1)
	f.Add("@bulkhead+pm", uint64(0), uint64(3), 1000)
	a := fuzzed(f)
	for range 5 {
		a.Send(f.Context(), "pm", []Draft{post("product", "x"), note("qa", "x")})
	}
	f.Fuzz(func(t *testing.T, channel string, seq, after uint64, limit int) {
		p, err := a.Replay(t.Context(), "pm", ReplayRequest{Channel: channel, From: seq, Limit: limit})
		for _, m := range p.Messages {
			if err != nil || m.Channel != channel || m.Sequence < seq {
				t.Errorf("replay from %d of %s gave %+v, %v", seq, channel, m, err)
			}
		}
		p, err = a.Thread(t.Context(), "pm", ThreadRequest{Channel: channel, Sequence: seq, After: after, Limit: limit})
		for _, m := range p.Messages {
			if err != nil || m.Channel != channel || m.Sequence <= after {
				t.Errorf("thread %d of %s after %d gave %+v, %v", seq, channel, after, m, err)
			}
		}
	})
}

// FuzzLease shows anything as a lease: only the one that was given may count.
func FuzzLease(f *testing.F) {
	f.Add("", int64(0))
	f.Add(leaseToken(1, 2), int64(time.Second))
	f.Add(leaseToken(-1, -1), int64(-1))
	a := fuzzed(f)
	a.Send(f.Context(), "pm", []Draft{note("qa", "x")})
	ds, err := a.Receive(f.Context(), "qa", ReceiveRequest{Lease: maxLease})
	if err != nil || len(ds) != 1 {
		f.Fatal(ds, err)
	}
	f.Fuzz(func(t *testing.T, lease string, d int64) {
		if lease == ds[0].Lease {
			return
		}
		if err := a.Extend(t.Context(), "qa", []string{lease}, time.Duration(d))[0]; err == nil {
			t.Errorf("%q was extended", lease)
		}
		if err := a.Refuse(t.Context(), "qa", []Refusal{{Lease: lease, Delay: time.Duration(d)}})[0]; err == nil {
			t.Errorf("%q was refused", lease)
		}
		if err := a.Ack(t.Context(), "qa", []string{lease})[0]; err == nil {
			t.Errorf("%q was acknowledged", lease)
		}
	})
}
