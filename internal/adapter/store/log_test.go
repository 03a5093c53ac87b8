package store

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTheLogIsLongBeforeItIsUsed: also one that a crash left short, whose messages
// are all there.
func TestTheLogIsLongBeforeItIsUsed(t *testing.T) {
	long := func(path string) {
		t.Helper()
		info, err := os.Stat(path + "-wal")
		if err != nil || info.Size() != logBytes {
			t.Fatalf("%v, %v", info, err)
		}
	}
	s := setUp(t)
	long(s.Path)
	for range 20 {
		s.send("pm", note("qa", "x"))
	}
	long(s.Path) // it does not grow
	frames := int64(0)
	text, err := os.ReadFile(s.Path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range text {
		if b != 0 {
			frames = int64(i)
		}
	}
	// As after a kill, at several lengths from the last frame on.
	for _, size := range []int64{frames + 1, frames + 4096, logBytes - 1} {
		path := filepath.Join(t.TempDir(), "messages.db")
		for _, suffix := range []string{"", "-wal"} {
			b, err := os.ReadFile(s.Path + suffix)
			if err == nil {
				if suffix != "" {
					b = b[:size]
				}
				err = os.WriteFile(path+suffix, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		again := setUp(t, func(c *Config) { c.Path = path })
		long(path)
		if n := len(again.receive("qa", ReceiveRequest{Max: 100})); n != 20 {
			t.Errorf("%d messages with a log of %d bytes", n, size)
		}
	}
}

func TestALogThatCannotBeMadeLongIsLeftAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "messages.db")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), path+"-wal"); err != nil {
		t.Fatal(err)
	}
	if err := lengthen(path); err == nil {
		t.Error("it followed a link")
	}
	if err := lengthen(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("there is no database")
	}
}
