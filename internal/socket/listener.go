package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listener gives the connections of a listening TCP socket.
type Listener struct {
	f    *os.File
	raw  syscall.RawConn
	addr net.Addr
}

// Listen takes a duplicate of f, a listening TCP socket. Its connections send
// without delay. They are not probed when they are silent: this is for clients
// on the same host, whose kernel tells when they are gone.
func Listen(f *os.File) (*Listener, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var addr net.Addr
	var inner error
	err = raw.Control(func(n uintptr) { fd, addr, inner = prepare(int(n)) }) // #nosec G115 -- a descriptor
	if err = errors.Join(err, inner); err != nil {
		return nil, fmt.Errorf("take a listener: %w", err)
	}
	own := os.NewFile(uintptr(fd), "listener") // #nosec G115 -- a descriptor
	if raw, err = own.SyscallConn(); err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return &Listener{f: own, raw: raw, addr: addr}, nil
}

func prepare(of int) (fd int, addr net.Addr, err error) {
	sa, err := syscall.Getsockname(of)
	if err != nil {
		return -1, nil, err
	}
	if fd, err = unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0); err != nil { // #nosec G115 -- a descriptor
		return -1, nil, err
	}
	// What is accepted inherits the option: one call for all of them.
	if err = errors.Join(unix.SetNonblock(fd, true), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)); err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	return fd, address(sa), nil
}

// Accept waits for a connection.
func (l *Listener) Accept() (net.Conn, error) {
	fd := -1
	var sa syscall.Sockaddr
	var inner error
	err := l.raw.Read(func(n uintptr) bool {
		for {
			// Not unix.Accept4, which asks each socket for its protocol.
			fd, sa, inner = syscall.Accept4(int(n), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) // #nosec G115 -- a descriptor
			if !errors.Is(inner, unix.EINTR) && !errors.Is(inner, unix.ECONNABORTED) {
				return !errors.Is(inner, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil: // the file is closed: what else could it be
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	case inner != nil:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: os.NewSyscallError("accept4", inner)}
	}
	f := os.NewFile(uintptr(fd), "accepted") // #nosec G115 -- a descriptor
	c, err := Connected(f, l.addr, address(sa))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return c, nil
}

// Close ends Accept. The socket goes on listening while others hold it.
func (l *Listener) Close() error {
	if err := l.f.Close(); err != nil {
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
	return nil
}

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.addr }

func address(sa syscall.Sockaddr) net.Addr {
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))) // #nosec G115 -- a port
	case *syscall.SockaddrInet6:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))) // #nosec G115 -- a port
	}
	return &net.TCPAddr{}
}
