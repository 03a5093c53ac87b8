package store

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"bulkhead/internal/record"
)

// BenchmarkRecords is durable records by callers at once (docs/benchmarks.md).
func BenchmarkRecords(b *testing.B) {
	if os.Getenv("BULKHEAD_BENCH") == "" {
		b.Skip("numbers are taken with BULKHEAD_BENCH=1")
	}
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s := openAt(b, Config{Path: filepath.Join(b.TempDir(), "system.db")})
			r := call(record.Allowed, "mem_set")
			r.Input = []byte(`{"key":"session:42:state","value":{"size":120,"hash":"0011223344556677"}}`)
			var n atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for n.Add(1) <= int64(b.N) {
						if err := s.Write(b.Context(), r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
