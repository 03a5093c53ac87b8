package shim

import (
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/engine"
)

// By the clock of synctest, which stands still while anybody works.
func TestAStateThatIsWaitedForComesWithTheChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shim{cfg: engine.ShimConfig{Mode: engine.ShimSession}, ended: make(chan struct{})}
		s.handover = &handover{news: &s.news, waiting: "the gateway"}
		at := time.Now()
		if st := s.stateWhenReady(100 * time.Millisecond); st.Ready || time.Since(at) != 100*time.Millisecond {
			t.Errorf("nothing changes: %+v after %v", st, time.Since(at))
		}
		at = time.Now()
		if st := s.stateWhenReady(time.Hour); st.Ready || time.Since(at) != maxWait {
			t.Errorf("longer than is allowed: %+v after %v", st, time.Since(at))
		}
		go func() {
			time.Sleep(10 * time.Millisecond)
			s.handover.set(1, "the gateway takes the listeners")
			time.Sleep(10 * time.Millisecond)
			s.handover.set(2, "")
		}()
		at = time.Now()
		if st := s.stateWhenReady(time.Second); !st.Ready || st.Listeners != 2 || time.Since(at) != 20*time.Millisecond {
			t.Errorf("it becomes ready: %+v after %v", st, time.Since(at))
		}
		s.handover.set(0, "the gateway ended")
		go func() {
			time.Sleep(10 * time.Millisecond)
			s.end(3)
		}()
		at = time.Now()
		if st := s.stateWhenReady(time.Second); st.Ready || time.Since(at) != 10*time.Millisecond {
			t.Errorf("it ends: %+v after %v", st, time.Since(at))
		}
	})
}
