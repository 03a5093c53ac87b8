package main

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds each connection. A silent drop is no refusal that proves
// anything: it ends as ETIMEDOUT.
const patience = 2 * time.Second

// connectSockets connects to each unix socket; "@name" is an abstract one.
func connectSockets(t *trial) error {
	for _, p := range t.Paths {
		c, err := net.DialTimeout("unix", p, patience)
		if t.step("connect "+p, err) {
			t.saw("connected to %s", p)
			return c.Close()
		}
	}
	return nil
}

// vsock makes a socket of the family that reaches the hypervisor past every
// network namespace.
func vsock(t *trial) error { return makeVsock(t, unix.AF_VSOCK, "socket(AF_VSOCK)") }

// vsockHigh does so with a number whose low 32 bits are AF_VSOCK: the kernel
// takes the argument as an int, a filter that compares 64 bits does not.
func vsockHigh(t *trial) error {
	return makeVsock(t, 1<<32|unix.AF_VSOCK, "socket(0x100000028)")
}

func makeVsock(t *trial, family uintptr, what string) error {
	fd, _, n := unix.RawSyscall(unix.SYS_SOCKET, family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if t.step(what, number(n)) {
		t.saw("has a vsock socket")
		return unix.Close(int(fd)) // #nosec G115 -- a descriptor
	}
	return nil
}

// errnoOf finds the errno in err.
func errnoOf(err error) (syscall.Errno, bool) {
	var n syscall.Errno
	ok := errors.As(err, &n)
	return n, ok
}
