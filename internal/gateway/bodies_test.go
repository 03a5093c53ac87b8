package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

// stalled gives what it has and then nothing more, until ctx ends.
type stalled struct {
	ctx  context.Context
	has  io.Reader
	told chan struct{} // closed when more is wanted than it has
}

func (s *stalled) Read(b []byte) (int, error) {
	if n, err := s.has.Read(b); err == nil {
		return n, nil
	}
	close(s.told)
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func posted(ctx context.Context, size int64, body io.Reader) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", io.NopCloser(body))
	r.ContentLength = size
	return r
}

func TestALargeBodyThatComesSlowlyKeepsNoSmallOneWaiting(t *testing.T) {
	for name, size := range map[string]int64{"announced": maxToolBodies, "chunked": -1} {
		t.Run(name, func(t *testing.T) {
			b := newBodies()
			slow, end := context.WithCancel(t.Context())
			over, told := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(over)
				_, _, reason := b.read(httptest.NewRecorder(), posted(slow, size, &stalled{slow, bytes.NewReader(make([]byte, smallBody+1)), told}), "test", maxToolBodies)
				if reason == nil {
					t.Error("it is whole")
				}
			}()
			<-told                                                          // it has all of its share
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // not to hang
			defer cancel()
			for _, size := range []int64{smallBody, -1} {
				body, give, reason := b.read(httptest.NewRecorder(), posted(ctx, size, bytes.NewReader(make([]byte, smallBody))), "test", maxToolBodies)
				if reason != nil || len(body) != smallBody {
					t.Fatalf("%d bytes, %v", len(body), reason)
				}
				give()
			}
			end()
			<-over
		})
	}
}

// Whatever a body's size and however it is announced, it is what was sent or is
// refused, and no share of the memory is lost.
func TestBodiesAreWholeOrRefused(t *testing.T) {
	b := newBodies()
	for _, limit := range []int64{10, smallBody, 3 * smallBody} {
		for _, n := range []int64{0, 1, 9, 10, 11, smallBody - 1, smallBody, smallBody + 1, 3*smallBody - 1, 3 * smallBody, 3*smallBody + 1} {
			for _, size := range []int64{n, -1, n + 1} {
				sent := bytes.Repeat([]byte("0123456"), int(n/7)+1)[:n]
				body, give, reason := b.read(httptest.NewRecorder(), posted(t.Context(), size, bytes.NewReader(sent)), "test", limit)
				var want deny.Code
				switch {
				case n > limit, size > limit:
					want = deny.ToolTooLarge
				case size > n:
					want = deny.ToolInvalid
				}
				switch {
				case reason != nil && reason.Code != want, reason == nil && (want != "" || !bytes.Equal(body, sent)):
					t.Errorf("%d bytes, announced as %d, of at most %d: %d bytes, %v, want %q", n, size, limit, len(body), reason, want)
				}
				if reason == nil {
					give()
				}
			}
		}
	}
	if !b.small.TryAcquire(maxSmallBodies) || !b.large.TryAcquire(maxToolBodies) {
		t.Error("a share is lost")
	}
}
