package socket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// QuietConn is a connected unix stream socket whose reader is woken when there
// is something to read, and for nothing else.
//
// Go's poller asks for everything that a socket can tell. A unix socket tells
// that it can be written each time its peer has read, so every answer that is read
// wakes whoever waits for the next request, for nothing: that costs as much as
// to serve it. Here the poller looks at an epoll of the socket's own, which
// knows of reading alone. The price is a descriptor more for each connection.
type QuietConn struct {
	f             *os.File // blocking, so that the poller does not know it; all calls say MSG_DONTWAIT
	raw           syscall.RawConn
	local, remote net.Addr
	in            *readiness

	closed atomic.Bool
	full   sync.Mutex // held by the write that waits

	mu       sync.Mutex
	out      *readiness // what it waits with
	deadline time.Time  // of writes
}

// readiness waits until a socket can be read, or until it can be written.
type readiness struct {
	f   *os.File // an epoll
	raw syscall.RawConn
}

// Quiet takes c over: when it fails c is as it was, else c is closed.
func Quiet(c *net.UnixConn) (q *QuietConn, err error) {
	q = &QuietConn{local: c.LocalAddr(), remote: c.RemoteAddr()}
	given, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var inner error
	if err = given.Control(func(old uintptr) {
		if fd, inner = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3); inner == nil {
			q.in, inner = ready(fd, unix.EPOLLIN|unix.EPOLLRDHUP)
		}
	}); err == nil {
		err = inner
	}
	if err == nil {
		if err = c.Close(); err == nil {
			err = unix.SetNonblock(fd, false)
		}
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if q.in != nil {
			_ = q.in.f.Close()
		}
		return nil, fmt.Errorf("socket: %w", err)
	}
	q.f = os.NewFile(uintptr(fd), "unix") // #nosec G115 -- a descriptor
	q.raw, err = q.f.SyscallConn()
	return q, err
}

func ready(fd int, events uint32) (*readiness, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events})
	if err == nil {
		err = unix.SetNonblock(ep, true)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(ep))
	}
	r := &readiness{f: os.NewFile(uintptr(ep), "readiness")} // #nosec G115 -- a descriptor
	if err = r.f.SetDeadline(time.Time{}); err == nil {      // else it is not in the poller
		r.raw, err = r.f.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(err, r.f.Close())
	}
	return r, nil
}

// call does f until it does not have to wait, and waits in between.
func (c *QuietConn) call(r *readiness, f func(fd int) (int, error)) (n int, err error) {
	failure := r.raw.Read(func(uintptr) bool {
		n, err = c.now(f)
		return !errors.Is(err, unix.EAGAIN)
	})
	if failure != nil {
		return 0, failure
	}
	return max(n, 0), err
}

// now does f, with the socket kept open meanwhile.
func (c *QuietConn) now(f func(fd int) (int, error)) (n int, err error) {
	failure := c.raw.Control(func(fd uintptr) {
		for {
			if n, err = f(int(fd)); !errors.Is(err, unix.EINTR) { // #nosec G115 -- a descriptor
				return
			}
		}
	})
	if failure != nil {
		return 0, failure
	}
	return n, err
}

// Read reads what has come. Descriptors that came with it are closed by the kernel.
func (c *QuietConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := c.call(c.in, func(fd int) (int, error) {
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
		return n, err
	})
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, c.failed("read", err)
}

// Try writes what the kernel takes without waiting; it may be nothing.
func (c *QuietConn) Try(b []byte) (int, error) {
	n, err := c.now(func(fd int) (int, error) { return send(fd, b) })
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	return max(n, 0), c.failed("write", err)
}

func send(fd int, b []byte) (int, error) {
	return unix.SendmsgN(fd, b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// Write writes all of b.
func (c *QuietConn) Write(b []byte) (n int, err error) {
	c.mu.Lock()
	late := !c.deadline.IsZero() && !time.Now().Before(c.deadline)
	c.mu.Unlock()
	if late {
		return 0, c.failed("write", os.ErrDeadlineExceeded)
	}
	n, err = c.Try(b)
	if n == len(b) || err != nil {
		return n, err
	}
	c.full.Lock()
	defer c.full.Unlock()
	out, err := c.wait()
	if err != nil {
		return n, c.failed("write", err)
	}
	defer c.waited()
	for err == nil && n < len(b) {
		var m int
		m, err = c.call(out, func(fd int) (int, error) { return send(fd, b[n:]) })
		n += m
	}
	return n, c.failed("write", err)
}

// wait makes what a write waits with. It would wake somebody each time that the
// peer reads, so it is there only while a write waits.
func (c *QuietConn) wait() (*readiness, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, net.ErrClosed
	}
	var r *readiness
	_, err := c.now(func(fd int) (n int, err error) {
		r, err = ready(fd, unix.EPOLLOUT)
		return 0, err
	})
	if err != nil {
		return nil, err
	}
	if !c.deadline.IsZero() {
		if err := r.f.SetReadDeadline(c.deadline); err != nil {
			return nil, errors.Join(err, r.f.Close())
		}
	}
	c.out = r
	return r, nil
}

func (c *QuietConn) waited() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.f.Close() // it may be closed already
	c.out = nil
}

// Close closes the socket. Whoever reads or writes meanwhile gets net.ErrClosed.
func (c *QuietConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Swap(true) {
		return c.failed("close", net.ErrClosed)
	}
	err := c.in.f.Close()
	if c.out != nil {
		err = errors.Join(err, c.out.f.Close())
	}
	if err = errors.Join(err, c.f.Close()); err != nil {
		return c.operation("close", err)
	}
	return nil
}

// CloseWrite says that nothing more will be written.
func (c *QuietConn) CloseWrite() error {
	_, err := c.now(func(fd int) (int, error) { return 0, unix.Shutdown(fd, unix.SHUT_WR) })
	return c.failed("close", err)
}

// LocalAddr is the address of this end.
func (c *QuietConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the address of the other end.
func (c *QuietConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *QuietConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds reads, also one that waits already.
func (c *QuietConn) SetReadDeadline(t time.Time) error {
	return c.failed("set", c.in.f.SetReadDeadline(t))
}

// SetWriteDeadline bounds the waiting of writes, also of one that waits already.
func (c *QuietConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.out == nil {
		return nil
	}
	return c.failed("set", c.out.f.SetReadDeadline(t))
}

// failed gives errors the form that package net gives them. Of a closed file's
// poller comes an error that has no name outside of Go, so whatever fails once
// the socket is closed fails with net.ErrClosed.
func (c *QuietConn) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	if c.closed.Load() {
		err = net.ErrClosed
	}
	return c.operation(op, err)
}

func (c *QuietConn) operation(op string, err error) error {
	return &net.OpError{Op: op, Net: "unix", Source: c.local, Addr: c.remote, Err: err}
}
