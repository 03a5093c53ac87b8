package dialer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// descriptor is an open socket without anything around it: most are passed on
// and closed at once, and a file or a connection of Go's would be registered
// with the poller and taken out again first.
type descriptor int

const none = descriptor(-1)

func (d descriptor) close() { _ = unix.Close(int(d)) }

// connect makes one TCP socket and connects it.
func connect(ctx context.Context, to netip.AddrPort) (descriptor, error) {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return none, fmt.Errorf("connect to %s: %w", to, err)
	}
	// What net.Dialer sets too: no delay, and a probe of silent peers.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 30)
	err = unix.Connect(fd, sa)
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		// The second call says how the first one went (connect(2)). A peer on this
		// host has answered by now.
		err = unix.Connect(fd, sa)
	}
	if errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		err = await(ctx, fd)
	}
	if err != nil && !errors.Is(err, unix.EISCONN) {
		descriptor(fd).close()
		return none, fmt.Errorf("connect to %s: %w", to, err)
	}
	return descriptor(fd), nil
}

// await waits until the connection stands or has failed. The poller gets a
// duplicate, which it closes with the file.
func await(ctx context.Context, sock int) error {
	dup, err := unix.FcntlInt(uintptr(sock), unix.F_DUPFD_CLOEXEC, 0) // #nosec G115 -- a descriptor
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dup), "connecting") // #nosec G115 -- a descriptor
	defer func() { _ = f.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Write(func(fd uintptr) bool {
		n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) // #nosec G115 -- a descriptor
		if err == nil && n != 0 {
			err = unix.Errno(n) // #nosec G115 -- an errno
		}
		if err != nil {
			inner = err
			return true
		}
		// No error, but is there a peer? Else the connection is on its way.
		_, err = unix.Getpeername(int(fd)) // #nosec G115 -- a descriptor
		return err == nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, inner)
}

// race connects to the first of the addresses that answers; each one starts
// after a head start of those before it, or when they have all failed.
func race(ctx context.Context, addrs []netip.AddrPort) (descriptor, netip.AddrPort, error) {
	if len(addrs) == 1 {
		s, err := connect(ctx, addrs[0])
		return s, addrs[0], err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		s   descriptor
		to  netip.AddrPort
		err error
	}
	results := make(chan outcome, len(addrs))
	started, ended := 0, 0
	start := func() {
		a := addrs[started]
		started++
		go func() { // ends with ctx at the latest; its result is taken below
			s, err := connect(ctx, a)
			results <- outcome{s, a, err}
		}()
	}
	defer func() {
		cancel()
		for ; ended < started; ended++ {
			if r := <-results; r.err == nil {
				r.s.close()
			}
		}
	}()
	var errs []error
	timer := time.NewTimer(headStart)
	defer timer.Stop()
	for start(); ; {
		select {
		case r := <-results:
			ended++
			if r.err == nil {
				return r.s, r.to, nil
			}
			errs = append(errs, r.err)
			if len(errs) == len(addrs) {
				return none, netip.AddrPort{}, errors.Join(errs...)
			}
			if ended == started {
				start()
				timer.Reset(headStart)
			}
		case <-timer.C:
			if started < len(addrs) {
				start()
				timer.Reset(headStart)
			}
		}
	}
}
