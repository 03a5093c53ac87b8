package dialer

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func aSocket(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// A place is free again when the last copy of its socket is closed, wherever
// that is, and not when the dialer's own is.
func TestAPlaceIsASocketsUntilItsLastHolderClosesIt(t *testing.T) {
	p, err := newPlaces(2, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.close() }()
	var kept []int
	for range 2 {
		if err := p.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := aSocket(t)
		if err := p.keepConn(s); err != nil {
			t.Fatal(err)
		}
		dup, err := unix.Dup(int(s.Fd())) // as passed to another process
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, dup)
		_ = s.Close()
	}
	if err := p.take(t.Context()); !errors.Is(err, errFull) {
		t.Fatalf("a third one: %v", err)
	}
	// Disconnecting (connect(2), AF_UNSPEC) does not make room.
	_ = unix.Shutdown(kept[0], unix.SHUT_RDWR)
	if err := p.take(t.Context()); !errors.Is(err, errFull) {
		t.Fatalf("after a shutdown: %v", err)
	}
	_ = unix.Close(kept[0])
	if err := p.take(t.Context()); err != nil {
		t.Fatalf("after a close: %v", err)
	}
	p.leave()
	_ = unix.Close(kept[1])
	for range 2 {
		if err := p.take(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.take(t.Context()); !errors.Is(err, errFull) {
		t.Fatalf("those being connected do not count: %v", err)
	}
}

func TestAConnectionThatDidNotComeAboutTakesNoPlace(t *testing.T) {
	p, err := newPlaces(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.close() }()
	for range 10 {
		if err := p.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.leave()
	}
}

// Whatever the moments, no more are made than the rate and its burst allow.
func TestABucketHoldsItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 1000).Draw(t, "rate")
		b := bucket{perSecond: rate}
		start := time.Unix(1000, 0)
		now, made := start, 0
		for range rapid.IntRange(1, 3000).Draw(t, "tries") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "ms")) * time.Millisecond)
			wait, ok := b.take(now)
			if wait > bucketWait {
				t.Fatalf("somebody waits %s", wait)
			}
			if !ok {
				continue
			}
			made++
			if most := float64(rate)*(now.Add(wait).Sub(start).Seconds()+burstSeconds) + 1; float64(made) > most {
				t.Fatalf("%d after %s, at most %.1f", made, now.Add(wait).Sub(start), most)
			}
		}
	})
	b := bucket{}
	if wait, ok := b.take(time.Now()); wait != 0 || !ok {
		t.Error("no rate is a bound")
	}
}

func FuzzTargets(f *testing.F) {
	f.Add([]byte("pos:\t0\nflags:\t02\nmnt_id:\t16\ntfd:        7 events: 40000018 data:                0  pos:0 ino:1 sdev:8\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		if n := countTargets(page); n < 0 || n > len(page)/4 {
			t.Errorf("%d targets in %d bytes", n, len(page))
		}
	})
}
