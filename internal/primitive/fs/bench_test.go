package fs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"bulkhead/internal/tool"
)

// BenchmarkWrite has fs_write as a stream through the dispatcher, with a journal in memory,
// against a file that is written and synced, and against one that is replaced
// as durably as can be without this package.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20} {
		data := make([]byte, size)
		b.Run(fmt.Sprintf("fs_write/%d", size), func(b *testing.B) {
			w := open(b, b.TempDir(), roomy)
			d, _ := dispatcher(b, w)
			b.SetBytes(int64(size))
			for b.Loop() {
				ctx := WithBody(b.Context(), bytes.NewReader(data), int64(size))
				if _, r := d.Call(ctx, tool.Caller{Team: "t", Agent: "a"}, "fs_write", []byte(`{"path":"a"}`)); r != nil {
					b.Fatal(r)
				}
			}
		})
		b.Run(fmt.Sprintf("write+fsync/%d", size), func(b *testing.B) {
			name := filepath.Join(b.TempDir(), "a")
			b.SetBytes(int64(size))
			for b.Loop() {
				writeSync(b, name, data)
			}
		})
		b.Run(fmt.Sprintf("write+fsync+rename+fsync/%d", size), func(b *testing.B) {
			dir := b.TempDir()
			name := filepath.Join(dir, "a")
			b.SetBytes(int64(size))
			for b.Loop() {
				writeSync(b, name+".tmp", data)
				if err := os.Rename(name+".tmp", name); err != nil {
					b.Fatal(err)
				}
				f, err := os.Open(dir)
				if err != nil {
					b.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
				_ = f.Close()
			}
		})
	}
}

func writeSync(b *testing.B, name string, data []byte) {
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}
