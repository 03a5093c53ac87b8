// Package socket gives stream sockets that came as descriptors, with as few
// system calls as can be.
//
// net.FileConn and net.FileListener duplicate the descriptor, ask the kernel
// what it is and where both of its ends are, and set five options: about ten
// calls for each connection, which is more than a short tunnel needs for
// everything else. Here a connection costs one call beside its registration
// with the poller. The price: nothing is asked, so the caller says what it is.
package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connected stream socket, TCP or unix. Like every net.Conn it may be
// used by many goroutines.
type Conn struct {
	f             *os.File
	raw           syscall.RawConn
	local, remote net.Addr
}

// Connected takes f over, a connected stream socket that does not block. The
// addresses are only told to those who ask; neither may be nil.
func Connected(f *os.File, local, remote net.Addr) (*Conn, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Conn{f: f, raw: raw, local: local, remote: remote}, nil
}

// Read reads what has come.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.f.Read(b)
	if err != nil && err != io.EOF { //nolint:errorlint // os.File gives this very value
		err = c.failed("read", err)
	}
	return n, err
}

// Write writes all of b.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.f.Write(b)
	if err != nil {
		err = c.failed("write", err)
	}
	return n, err
}

// Close closes the socket. Whoever reads or writes meanwhile gets net.ErrClosed.
func (c *Conn) Close() error {
	if err := c.f.Close(); err != nil {
		return c.failed("close", err)
	}
	return nil
}

// CloseWrite says that nothing more will be written.
func (c *Conn) CloseWrite() error {
	var inner error
	err := c.raw.Control(func(fd uintptr) { inner = unix.Shutdown(int(fd), unix.SHUT_WR) }) // #nosec G115 -- a descriptor
	if err = errors.Join(err, inner); err != nil {
		return c.failed("close", err)
	}
	return nil
}

// LocalAddr is what [Connected] was told.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is what [Connected] was told.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline bounds reads and writes.
func (c *Conn) SetDeadline(t time.Time) error { return c.f.SetDeadline(t) }

// SetReadDeadline bounds reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.f.SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.f.SetWriteDeadline(t) }

// SyscallConn gives access to the descriptor.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// failed makes a file's error a connection's, which net/http asks whether it is
// a timeout (net.Error).
func (c *Conn) failed(op string, err error) error {
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: c.remote.Network(), Source: c.local, Addr: c.remote, Err: err}
}
