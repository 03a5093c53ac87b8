package tool

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTheWindowLetsThroughWhatASimpleOneDoes compares it with one that counts
// the calls of the last minute anew each time.
func TestTheWindowLetsThroughWhatASimpleOneDoes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.IntRange(0, 6).Draw(r, "limit")
		now := time.Unix(1000, 0)
		w := newWindow(limit, func() time.Time { return now })
		var let []time.Time
		for range rapid.IntRange(1, 60).Draw(r, "calls") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30_000).Draw(r, "ms")) * time.Millisecond)
			own := rapid.IntRange(0, 8).Draw(r, "own limit")
			most := limit
			if own > 0 && own < limit {
				most = own
			}
			in := 0
			for _, at := range let {
				if now.Sub(at) < time.Minute {
					in++
				}
			}
			wait, ok := w.take(own)
			if ok != (in < most) {
				r.Fatalf("%d calls of %d in the last minute: %v", in, most, ok)
			}
			if ok {
				let = append(let, now)
				continue
			}
			if wait <= 0 || wait > time.Minute {
				r.Fatalf("wait %v", wait)
			}
			// Waiting that long is enough, and less is not.
			if most > 0 {
				at := now.Add(wait)
				n, before := 0, 0
				for _, x := range let {
					if at.Sub(x) < time.Minute {
						n++
					}
					if at.Add(-time.Nanosecond).Sub(x) < time.Minute {
						before++
					}
				}
				if n >= most || before < most {
					r.Fatalf("after %v there are %d, just before %d, of %d", wait, n, before, most)
				}
			}
		}
	})
}

func TestTheWindowIsExactAtOnce(t *testing.T) {
	w := newWindow(100, time.Now)
	var let atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				if _, ok := w.take(0); ok {
					let.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if let.Load() != 100 {
		t.Errorf("%d went through, want exactly 100", let.Load())
	}
}
