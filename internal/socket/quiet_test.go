package socket

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"
)

func quietPair(t testing.TB) (a, b *QuietConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var both [2]*QuietConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if both[i], err = Quiet(c.(*net.UnixConn)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = both[i].Close() })
	}
	return both[0], both[1]
}

// TestAQuietConnIsANetConn has the tests of Go's own look at one.
func TestAQuietConnIsANetConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b := quietPair(t)
		return a, b, func() { _ = a.Close(); _ = b.Close() }, nil
	})
}

func TestAQuietConnWritesMoreThanTheKernelTakes(t *testing.T) {
	a, b := quietPair(t)
	want := make([]byte, 4<<20)
	_, _ = rand.Read(want)
	var work sync.WaitGroup
	work.Go(func() {
		if n, err := a.Write(want); n != len(want) || err != nil {
			t.Error(n, err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(b)
	work.Wait()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}

func TestTryTakesWhatThereIsRoomFor(t *testing.T) {
	a, b := quietPair(t)
	block := make([]byte, 1<<20)
	first, err := a.Try(block)
	if first == 0 || first == len(block) || err != nil {
		t.Fatal(first, err)
	}
	for n := 1; n > 0; {
		if n, err = a.Try(block); err != nil {
			t.Fatal(err)
		}
		first += n
	}
	if n, err := io.ReadFull(b, make([]byte, first)); err != nil {
		t.Fatal(n, err)
	}
	if n, err := a.Try(block[:1]); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestAReaderIsNotWokenByWhatItsPeerReads: of the socket's own epoll comes
// nothing when the peer has read, which is what all of this is for.
func TestAReaderIsNotWokenByWhatItsPeerReads(t *testing.T) {
	a, b := quietPair(t)
	for range 100 {
		if _, err := a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		var n int
		err := a.in.raw.Control(func(fd uintptr) {
			n, _ = unix.EpollWait(int(fd), make([]unix.EpollEvent, 1), 0)
		})
		if n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}
}

func TestQuietLeavesNoDescriptor(t *testing.T) {
	count := func() int {
		all, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	a, b := quietPair(t) // what the poller needs is there
	before := count()
	for range 50 {
		c, d := quietPair(t)
		for n := 1; n > 0; { // so that it waits to write
			n, _ = c.Try(make([]byte, 1<<20))
		}
		_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		_ = c.Close()
		_ = d.Close()
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	_ = a.Close()
	_ = b.Close()
}

// TestWhatAClosedQuietConnIsAskedFailsAsClosed: whoever waits is told, too.
func TestWhatAClosedQuietConnIsAskedFailsAsClosed(t *testing.T) {
	for name, do := range map[string]func(*QuietConn) error{
		"read":     func(c *QuietConn) error { _, err := c.Read(make([]byte, 1)); return err },
		"try":      func(c *QuietConn) error { _, err := c.Try([]byte("x")); return err },
		"write":    func(c *QuietConn) error { _, err := c.Write(make([]byte, 4<<20)); return err },
		"shutdown": (*QuietConn).CloseWrite,
		"deadline": func(c *QuietConn) error { return c.SetDeadline(time.Now()) },
		"close":    (*QuietConn).Close,
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := quietPair(t)
			if name == "read" || name == "write" { // which wait before as well
				waits := make(chan error)
				go func() { waits <- do(a) }()
				select {
				case err := <-waits:
					t.Fatal("it did not wait:", err)
				case <-time.After(20 * time.Millisecond):
				}
				_ = a.Close()
				if err := <-waits; !errors.Is(err, net.ErrClosed) {
					t.Errorf("one that waited: %v", err)
				}
			}
			_ = a.Close()
			if err := do(a); !errors.Is(err, net.ErrClosed) {
				t.Errorf("one afterwards: %v", err)
			}
		})
	}
}
