package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// childArg makes the probe be a child of itself, for what must happen in a
// process of its own: it may be killed, or must have a single thread.
const childArg = "child"

// How a child ends that makes a call. Neither is how a Go program that met a
// fault ends (2).
const (
	childAnswered = 0
	childRefused  = 4
)

// child waits until its parent closes its standard input, and ends. In the
// modes "i386" and "x32" it makes a system call by that table instead.
func child() {
	switch os.Getenv("MODE") {
	case "memory":
		touchMemory()
	case "i386":
		endAs(callI386(getpidI386) > 0)
	case "x32":
		_, _, n := unix.RawSyscall(getpidX32, 0, 0, 0)
		endAs(n == 0)
	}
	// As a target in a decoy it must be exactly as open as the mechanisms under
	// test leave it. Yama (ptrace_scope 1) would refuse besides; without Yama
	// this fails, and nothing is lost.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0) // PR_SET_PTRACER_ANY
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func endAs(answered bool) {
	if answered {
		os.Exit(childAnswered)
	}
	os.Exit(childRefused)
}

// spawn starts a child and gives a function that ends it and waits.
func spawn(attr *syscall.SysProcAttr, mode string) (*exec.Cmd, func() error, error) {
	c := exec.Command("/proc/self/exe", childArg) // #nosec G204 -- itself
	c.Env = []string{"MODE=" + mode}
	c.SysProcAttr = attr
	in, err := c.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	return c, func() error { return errors.Join(in.Close(), c.Wait()) }, nil
}
