package socket_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/socket"
)

// pair gives two connected ends of ours, TCP.
func pair(t *testing.T) (accepted, connected *socket.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	l, err := socket.Listen(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = ln.Close()
	defer func() { _ = l.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.(*net.TCPConn).File()
	_ = c.Close()
	if err != nil {
		t.Fatal(err)
	}
	if connected, err = socket.Connected(g, c.LocalAddr(), c.RemoteAddr()); err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if a.RemoteAddr().String() != c.LocalAddr().String() || a.LocalAddr().String() != l.Addr().String() {
		t.Fatalf("accepted %s <- %s", a.LocalAddr(), a.RemoteAddr())
	}
	t.Cleanup(func() { _ = a.Close(); _ = connected.Close() })
	return a.(*socket.Conn), connected
}

func TestWhatIsAcceptedSendsWithoutDelay(t *testing.T) {
	a, _ := pair(t)
	raw, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var on int
	var inner error
	err = raw.Control(func(fd uintptr) { on, inner = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY) })
	if err = errors.Join(err, inner); err != nil || on == 0 {
		t.Fatalf("TCP_NODELAY is %d, %v: what is accepted does not inherit it", on, err)
	}
}

func TestErrorsAreWhatAConnectionGives(t *testing.T) {
	a, b := pair(t)
	_ = a.SetReadDeadline(time.Unix(1, 0))
	_, err := a.Read(make([]byte, 1))
	if n := net.Error(nil); !errors.As(err, &n) || !n.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a deadline gives %v", err)
	}
	if n, ok := err.(net.Error); !ok || !n.Timeout() { //nolint:errorlint // as net/http asks
		t.Errorf("a deadline gives %T", err)
	}
	_ = a.SetReadDeadline(time.Time{})
	_, _ = b.Write([]byte("x"))
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(a)
	if string(got) != "x" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	var read sync.WaitGroup
	read.Go(func() {
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed while reading gives %v", err)
		}
	})
	time.Sleep(time.Millisecond) // either order must give the same
	_ = b.Close()
	read.Wait()
	if err := b.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice gives %v", err)
	}
	_, _ = a.Write([]byte("y"))
	for range 100 { // until the reset is here
		if _, err = a.Write([]byte("y")); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("writing to nobody gives %v", err)
	}
}

func TestAcceptEndsWithItsListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	l, err := socket.Listen(f)
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept gives %v", err)
		}
	})
	_ = l.Close()
	accepting.Wait()
}

func TestSpliceMovesEveryByte(t *testing.T) {
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	for name, unixEnd := range map[string]bool{"TCP to TCP": false, "unix to TCP": true} {
		t.Run(name, func(t *testing.T) {
			source, in := pair(t)
			out, sink := pair(t)
			var from syscall.Conn = in
			var feed interface {
				io.Writer
				CloseWrite() error
			} = source
			if unixEnd {
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					t.Fatal(err)
				}
				var ends [2]*socket.Conn
				for i, fd := range fds {
					if ends[i], err = socket.Connected(os.NewFile(uintptr(fd), "end"), &net.UnixAddr{}, &net.UnixAddr{}); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = ends[i].Close() })
				}
				from, feed = ends[0], ends[1]
			}
			var work sync.WaitGroup
			work.Go(func() {
				_, _ = feed.Write(sent)
				_ = feed.CloseWrite()
			})
			work.Go(func() {
				n, err := socket.Splice(out, from)
				if err != nil || n != int64(len(sent)) {
					t.Errorf("%d bytes, %v", n, err)
				}
				_ = out.CloseWrite()
			})
			got, err := io.ReadAll(sink)
			work.Wait()
			if err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("%d bytes of %d came, or other ones: %v", len(got), len(sent), err)
			}
		})
	}
}

func TestSpliceKeepsDeadlinesAndSaysWhoFailed(t *testing.T) {
	_, in := pair(t)
	out, _ := pair(t)
	_ = in.SetReadDeadline(time.Unix(1, 0))
	if _, err := socket.Splice(out, in); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want a deadline", err)
	}
	source, in := pair(t)
	_ = out.Close()
	_, _ = source.Write([]byte("x"))
	if _, err := socket.Splice(out, in); err == nil {
		t.Error("writing to a closed connection gave no error")
	}
	// A pipe that still held that byte would give it to the next stream.
	source, in = pair(t)
	out, sink := pair(t)
	_, _ = source.Write([]byte("y"))
	_ = source.CloseWrite()
	if n, err := socket.Splice(out, in); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	_ = out.CloseWrite()
	if got, err := io.ReadAll(sink); string(got) != "y" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
