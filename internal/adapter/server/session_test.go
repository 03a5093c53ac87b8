package server

import (
	"fmt"
	"testing"

	"bulkhead/internal/wire"
)

func TestCancelEndsWhatIsReadForWhoDoesNotWaitAnyMore(t *testing.T) {
	s := newSession(&port{}, nil)
	cancel := func(id uint64) { s.cancel(wire.Message{Body: fmt.Appendf(nil, `{"id":%d}`, id)}) }
	ctx, over := s.cancelable(t.Context(), 3)
	again, overAgain := s.cancelable(t.Context(), 3)
	cancel(4)
	if ctx.Err() != nil || again.Err() != nil {
		t.Fatal("another request's cancel ended it")
	}
	overAgain() // whose end is not that of the first with this id
	cancel(3)
	if ctx.Err() == nil {
		t.Error("it goes on")
	}
	over()
	if len(s.waits) > 0 {
		t.Errorf("%d are kept", len(s.waits))
	}
}
