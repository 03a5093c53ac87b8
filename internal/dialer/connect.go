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

// connect makes one TCP socket and connects it. It works on the descriptor
// itself: net.Dialer's connection would have to be duplicated to be passed on.
func connect(ctx context.Context, to netip.AddrPort) (*os.File, error) {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	// What net.Dialer sets too: no delay, and a probe of silent peers.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 30)
	err = unix.Connect(fd, sa)
	f := os.NewFile(uintptr(fd), to.String()) // #nosec G115 -- a descriptor
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		err = await(ctx, f)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return f, nil
}

// await waits until the connection stands or has failed.
func await(ctx context.Context, f *os.File) error {
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
func race(ctx context.Context, addrs []netip.AddrPort) (*os.File, netip.AddrPort, error) {
	if len(addrs) == 1 {
		f, err := connect(ctx, addrs[0])
		return f, addrs[0], err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		f   *os.File
		to  netip.AddrPort
		err error
	}
	results := make(chan outcome, len(addrs))
	started, ended := 0, 0
	start := func() {
		a := addrs[started]
		started++
		go func() { // ends with ctx at the latest; its result is taken below
			f, err := connect(ctx, a)
			results <- outcome{f, a, err}
		}()
	}
	defer func() {
		cancel()
		for ; ended < started; ended++ {
			if r := <-results; r.f != nil {
				_ = r.f.Close()
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
				return r.f, r.to, nil
			}
			errs = append(errs, r.err)
			if len(errs) == len(addrs) {
				return nil, netip.AddrPort{}, errors.Join(errs...)
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
