package launcher

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/wire"
)

// spareConns bounds how many connections wait for a run.
const spareConns = 2

// spares are connections to the launcher that are greeted and wait for their
// one request, so that a run need not wait for two more turns of both
// processes. Each is used once; the next is made after the run that took it.
type spares struct {
	dial func(context.Context) (*wire.Conn, error)

	mu      sync.Mutex
	idle    []*wire.Conn
	closed  bool
	closing chan struct{}  // closed with the spares; nil before the first refill
	wg      sync.WaitGroup // refills
}

// take gives a connection that is still open, or nil.
func (s *spares) take() *wire.Conn {
	for {
		s.mu.Lock()
		if len(s.idle) == 0 {
			s.mu.Unlock()
			return nil
		}
		conn := s.idle[len(s.idle)-1]
		s.idle = s.idle[:len(s.idle)-1]
		s.mu.Unlock()
		if silent(conn) {
			return conn
		}
		_ = conn.Close()
	}
}

// silent says whether the other side neither closed nor said anything, which
// it has no reason to before a request.
func silent(conn *wire.Conn) bool {
	raw, err := conn.Unix().SyscallConn()
	if err != nil {
		return false
	}
	var got error
	err = raw.Control(func(fd uintptr) {
		_, _, got = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT) // #nosec G115 -- a descriptor
	})
	return err == nil && errors.Is(got, unix.EAGAIN)
}

// refillDelay lets the run that took a connection be answered first.
const refillDelay = 5 * time.Millisecond

// refill makes one more in the background, a moment later. A launcher that does not answer is
// for the next run to report.
func (s *spares) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.idle) >= spareConns {
		return
	}
	if s.closing == nil {
		s.closing = make(chan struct{})
	}
	closing := s.closing
	s.wg.Go(func() {
		t := time.NewTimer(refillDelay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-closing:
			return
		}
		conn, err := s.dial(context.Background()) // the greeting has a deadline of its own
		if err != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed || len(s.idle) >= spareConns {
			_ = conn.Close()
			return
		}
		s.idle = append(s.idle, conn)
	})
}

// close closes every connection and waits for those in the making.
func (s *spares) close() {
	s.mu.Lock()
	if s.closing != nil && !s.closed {
		close(s.closing)
	}
	s.closed = true
	for _, conn := range s.idle {
		_ = conn.Close()
	}
	s.idle = nil
	s.mu.Unlock()
	s.wg.Wait()
}
