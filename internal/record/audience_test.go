package record

import (
	"bytes"
	"context"
	"strconv"
	"testing"

	"bulkhead/internal/deny"
)

func TestWhoReadsTooSlowlyIsToldHowMuchWasLostAndNobodyWaits(t *testing.T) {
	var a Audience
	if a.Present() || (*Audience)(nil).Present() {
		t.Fatal("somebody is there")
	}
	a.Tell(Record{Target: "before"})
	slow, other := a.Join(2), a.Join(10)
	if !a.Present() {
		t.Fatal("nobody is there")
	}
	for i := range 5 {
		a.Tell(Record{Target: strconv.Itoa(i)})
	}
	for _, want := range []string{"0", "1"} {
		if r, ok := slow.Next(t.Context(), nil); !ok || r.Target != want {
			t.Errorf("%+v, want %s", r, want)
		}
	}
	if r, ok := slow.Next(t.Context(), nil); !ok || r.Count != 3 || r.Verdict != Failed {
		t.Errorf("%+v: three were lost", r)
	}
	for i := range 5 {
		if r, ok := other.Next(t.Context(), nil); !ok || r.Target != strconv.Itoa(i) {
			t.Errorf("%+v, want %d", r, i)
		}
	}
	slow.Leave()
	slow.Leave()
	other.Leave()
	if a.Present() {
		t.Error("they left")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, ok := other.Next(ctx, nil); ok {
		t.Errorf("%+v after all was read", r)
	}
}

func TestTheLogTellsOfItsLines(t *testing.T) {
	var out bytes.Buffer
	var a Audience
	l := NewLog("t", &out)
	l.Tell(&a)
	s := a.Join(10)
	for range 3 {
		l.Add("w", Message, "outbox", Failed, &deny.Reason{Code: deny.MessageUnavailable})
	}
	l.Write(Record{Agent: "w", Kind: Life, Verdict: Allowed, Target: "notice", Detail: "hello"})
	l.Flush()
	for _, want := range []Record{{Target: "outbox", Count: 1}, {Target: "notice"}, {Target: "outbox", Count: 2}} {
		if r, ok := s.Next(t.Context(), nil); !ok || r.Target != want.Target || r.Count != want.Count || r.Team != "t" || r.Time.IsZero() {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
}
