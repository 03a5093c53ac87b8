package main

import (
	"fmt"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// injectTerminal puts a character into a terminal's input as if it were typed:
// with an operator's terminal passed in, that is a command on the host. The
// terminal is one of its own; a session is needed to have one, so a child of
// the kernel's fork is asked for where setsid fails.
func injectTerminal(t *trial) error {
	signal.Ignore(unix.SIGHUP) // closing the terminal below hangs up its session, which is us
	_, _ = unix.Setsid()       // fails for a leader, which may have a terminal anyway
	slave, done, err := ownTerminal()
	if err != nil {
		// Without a terminal the call itself is still judged: a filter answers
		// before the kernel looks at the descriptor.
		slave, done = 0, func() {}
	}
	defer done()
	c := byte('#')
	_, _, n := unix.RawSyscall(unix.SYS_IOCTL, uintptr(slave), unix.TIOCSTI, uintptr(unsafe.Pointer(&c))) // #nosec G103 G115 -- a system call's argument
	if n == syscall.ENOTTY && err != nil {
		return fmt.Errorf("no terminal to inject into: %w", err)
	}
	if t.step("ioctl(TIOCSTI)", number(n)) {
		t.saw("typed into a terminal")
	}
	// The kernel looks at 32 bits of the command; a filter must as well.
	_, _, n = unix.RawSyscall(unix.SYS_IOCTL, uintptr(slave), 1<<32|unix.TIOCSTI, uintptr(unsafe.Pointer(&c))) // #nosec G103 G115 -- a system call's argument
	if t.step("ioctl(TIOCSTI with high bits)", number(n)) {
		t.saw("typed into a terminal")
	}
	return nil
}

func ownTerminal() (int, func(), error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	closeMaster := func() { _ = unix.Close(master) }
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		closeMaster()
		return 0, nil, fmt.Errorf("unlock: %w", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		closeMaster()
		return 0, nil, fmt.Errorf("number: %w", err)
	}
	slave, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_CLOEXEC, 0) // becomes the controlling terminal
	if err != nil {
		closeMaster()
		return 0, nil, err
	}
	return slave, func() { _ = unix.Close(slave); closeMaster() }, nil
}
