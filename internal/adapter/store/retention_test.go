package store

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/deny"
)

func TestOldMessagesGoAndContractsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := setUp(t, func(c *Config) { c.Retention = 48 * time.Hour })
		key := note("qa", "old")
		s.send("pm", key)
		s.send("pm", as(note("qa", "an assignment"), TaskAssignment))
		s.send("pm", note("design", "pending"))
		s.ack("qa", s.receive("qa", ReceiveRequest{})...)
		time.Sleep(24 * time.Hour)
		s.send("ops", note("qa", "new"))
		time.Sleep(25*time.Hour + time.Minute)
		synctest.Wait()
		p, err := s.Replay(t.Context(), "pm", ReplayRequest{Channel: "@pm+qa"})
		if err != nil || len(p.Messages) != 1 || p.Messages[0].Type != TaskAssignment {
			t.Fatalf("%+v %v", p, err)
		}
		if ds := s.receive("design", ReceiveRequest{}); len(ds) != 1 {
			t.Error("a pending message was pruned")
		}
		s.restart()
		if r := s.send("pm", note("qa", "next")); r.Sequence != 3 {
			t.Errorf("sequence %d was given again", r.Sequence)
		}
		_, err = s.Thread(t.Context(), "pm", ThreadRequest{Channel: "@pm+qa", Sequence: 1})
		_ = s.reason(err, deny.MessageInvalid)
	})
}

func TestAJumpOfTheClockPrunesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64 // ns
		s := setUp(t, func(c *Config) { c.Clock = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) } })
		s.send("pm", note("qa", "hello"))
		s.ack("qa", s.receive("qa", ReceiveRequest{})...)
		s.send("pm", note("design", "the newest"))
		jump.Store(int64(365 * 24 * time.Hour))
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if p, err := s.Replay(t.Context(), "pm", ReplayRequest{Channel: "@pm+qa"}); err != nil || len(p.Messages) != 1 {
			t.Fatalf("%+v %v", p, err)
		}
	})
}
