package shim

import (
	"sync"
	"time"

	"bulkhead/internal/wire"
)

// news wakes those who wait for a change. The zero value is ready.
type news struct {
	mu   sync.Mutex
	next chan struct{} // closed by the next change; nil when nobody waits
}

// wait gives what is closed by the next change.
func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// tell says that something has changed.
func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}

// maxWait bounds how long an answer about the state is kept back.
const maxWait = time.Second

// stateWhenReady gives the state once the command is ready, has ended, or
// after most.
func (s *shim) stateWhenReady(most time.Duration) wire.ShimState {
	t := time.NewTimer(min(most, maxWait))
	defer t.Stop()
	for {
		changed := s.news.wait() // before the look, so that nothing falls between
		st := s.state()
		if st.Ready {
			return st
		}
		select {
		case <-changed:
		case <-s.ended:
			return s.state()
		case <-t.C:
			return s.state()
		}
	}
}
