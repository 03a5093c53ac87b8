package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

// refusing is a store that answers alerts with these errors, and then takes them.
type refusing struct {
	Store
	errs  []error
	taken []string
	keys  map[string]bool
}

func (s *refusing) Alert(_ context.Context, d adapter.Draft) adapter.SendResult {
	s.keys[d.IdempotencyKey] = true
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return adapter.SendResult{Err: err}
	}
	s.taken = append(s.taken, d.To)
	return adapter.SendResult{}
}

func TestAnAlertThatIsRefusedForNowIsSentAgain(t *testing.T) {
	full := &deny.Reason{Layer: deny.LayerMessages, Code: deny.MessageQueueFull, RetryAfter: 5}
	never := &deny.Reason{Layer: deny.LayerMessages, Code: deny.MessageNotAllowed}
	synctest.Test(t, func(t *testing.T) {
		s := &refusing{errs: []error{full, full, never, errors.New("it broke")}, keys: map[string]bool{}}
		a := newAlerts("orchestrator", s)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.run(ctx)
		for range 4 {
			a.add("pm", &deny.Reason{Layer: deny.LayerMessages, Code: deny.BadPeer})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(s.taken) != 2 || len(s.keys) != 4 || len(s.errs) != 0 {
			t.Errorf("%d were taken, %d keys, %d errors left", len(s.taken), len(s.keys), len(s.errs))
		}
	})
}
