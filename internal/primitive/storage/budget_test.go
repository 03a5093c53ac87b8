package storage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

func quota(err error) bool {
	var r *deny.Reason
	return errors.As(err, &r) && r.Code == deny.ToolQuota
}

// TestAnyNumberOfTakersNeverHoldMoreThanTheLimit has many takers and borrowers
// at once. What they were given is summed apart from the budget.
func TestAnyNumberOfTakersNeverHoldMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := Limits{Bytes: rapid.Int64Range(0, 1000).Draw(r, "bytes"), Files: rapid.Int64Range(0, 20).Draw(r, "files")}
		steps := rapid.SliceOfN(rapid.SliceOfN(rapid.Int64Range(-3, 300), 0, 12), 1, 6).Draw(r, "steps")
		b := New(limit)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var bytes, files int64
		add := func(n, f int64) {
			mu.Lock()
			defer mu.Unlock()
			bytes, files = bytes+n, files+f
			if bytes > limit.Bytes || files > limit.Files {
				t.Errorf("%d bytes and %d files are held of %+v", bytes, files, limit)
			}
		}
		for _, each := range steps {
			wg.Go(func() {
				var hold, count int64
				for _, n := range each {
					if n < 0 {
						got, settle, err := b.Borrow(context.Background())
						if err != nil {
							t.Error(err)
							return
						}
						add(got, 0)
						add(-(got - got/2), 0)
						hold += got / 2
						settle(got / 2)
						continue
					}
					if err := b.Take(context.Background(), "test", n, 1); err == nil {
						add(n, 1)
						hold, count = hold+n, count+1
					} else if !quota(err) {
						t.Error(err)
					}
				}
				add(-hold, -count)
				b.Give(hold, count)
			})
		}
		wg.Wait()
		if n, f := b.Used(); n != 0 || f != 0 {
			t.Errorf("%d bytes and %d files are left over", n, f)
		}
	})
}

// carrying gives the contexts of calls with a token of that quota, as the
// dispatcher makes them.
func carrying(t *testing.T, bytes int64) context.Context {
	t.Helper()
	var out context.Context
	table, err := tool.NewTable(tool.Tool{Name: "fs_read", Group: tool.Files, Run: func(ctx context.Context, _ *tool.Call) (any, error) {
		out = context.WithoutCancel(ctx)
		return nil, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	d := tool.New(tool.Config{Table: table, Journal: nowhere{}, Allowed: []string{"fs"}})
	if _, reason := d.Call(t.Context(), tool.Caller{Quota: tool.Quota{Storage: bytes}}, "fs_read", []byte("{}")); reason != nil {
		t.Fatal(reason)
	}
	return out
}

type nowhere struct{}

// Write implements tool.Journal.
func (nowhere) Write(context.Context, record.Record) error { return nil }

// Note implements tool.Journal.
func (nowhere) Note(record.Record) {}

func TestATokensQuotaIsExactUnderConcurrency(t *testing.T) {
	b := New(Limits{Bytes: 1000, Files: 1000})
	small, large, wide := carrying(t, 105), carrying(t, 500), carrying(t, 5000)
	var wg sync.WaitGroup
	var counts [2]atomic.Int64
	for range 200 {
		for i, ctx := range []context.Context{small, large} {
			wg.Go(func() {
				switch err := b.Take(ctx, "test", 10, 0); {
				case err == nil:
					counts[i].Add(1)
				case !quota(err):
					t.Error(err)
				}
			})
		}
		wg.Go(func() { // a database with the larger token, which keeps nothing
			n, settle, err := b.Borrow(large)
			if err != nil || n > 500 {
				t.Errorf("%d were lent, %v", n, err)
				return
			}
			settle(0)
		})
	}
	wg.Wait()
	if used, _ := b.Used(); counts[0].Load() > 10 || counts[0].Load()+counts[1].Load() != 50 || used != 500 {
		t.Errorf("%d with 105 and %d with 500 bytes, %d used", counts[0].Load(), counts[1].Load(), used)
	}
	if n, settle, err := b.Borrow(small); err != nil || n != 0 {
		t.Errorf("%d were lent above the quota, %v", n, err)
	} else {
		settle(0)
	}
	err := b.Take(small, "test", 1, 0)
	var r *deny.Reason
	if !errors.As(err, &r) || !strings.Contains(r.Mend, "storageQuotaBytes") {
		t.Errorf("%v", err)
	}
	if err := b.Take(small, "test", -1, 0); err != nil {
		t.Errorf("what is given back is never refused: %v", err)
	}
	if err := b.Take(wide, "test", 501, 0); err != nil {
		t.Error(err)
	}
	if err := b.Take(wide, "test", 1, 0); !quota(err) {
		t.Errorf("a token widens the agent's quota: %v", err)
	}
}

func TestWhoNeedsWhatIsLentWaitsForIt(t *testing.T) {
	b := New(Limits{Bytes: 100, Files: 10})
	n, settle, err := b.Borrow(t.Context())
	if err != nil || n != 100 {
		t.Fatal(n, err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := b.Take(stopped, "test", 1, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a taker that may not wait got %v", err)
	}
	if _, _, err := b.Borrow(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("a second borrower that may not wait got %v", err)
	}
	done := make(chan error)
	go func() { done <- b.Take(context.Background(), "test", 40, 1) }()
	settle(60)
	if err := <-done; err != nil {
		t.Errorf("40 of 100 were left, and were refused: %v", err)
	}
	if err := b.Take(t.Context(), "test", 1, 0); !quota(err) {
		t.Errorf("the budget is used up; got %v", err)
	}
}

func TestWhatIsThereAlreadyCountsEvenAboveTheLimit(t *testing.T) {
	b := New(Limits{Bytes: 10, Files: 1})
	b.Count(15, 3)
	if err := b.Take(t.Context(), "test", 1, 0); !quota(err) {
		t.Error(err)
	}
	if err := b.Take(t.Context(), "test", -2, -1); err != nil {
		t.Errorf("giving back was refused: %v", err)
	}
	if n, settle, err := b.Borrow(t.Context()); n != 0 || err != nil {
		t.Error(n, err)
	} else {
		settle(-13)
	}
	if n, f := b.Used(); n != 0 || f != 2 {
		t.Error(n, f)
	}
}
