package main

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// getpidX32 is getpid in the x32 table, whose numbers have bit 30
// (arch/x86/include/uapi/asm/unistd.h).
const getpidX32 = 1<<30 | 39

// archKinds are attempts by calls that only this architecture has.
func archKinds() map[string]kind {
	return map[string]kind{
		"arch.modify_ldt": {do: calls(called{"modify_ldt, reading", readLDT, nil})},
		"arch.ports": {do: calls(
			called{"ioperm of port 0x80", raw(unix.SYS_IOPERM, 0x80, 1, 1), nil},
			called{"iopl(3)", raw(unix.SYS_IOPL, 3), []syscall.Errno{}},
		)},
		"arch.x32": {do: func(t *trial) error { return inChild(t, "getpid of the x32 table", "x32", getpidX32) }},
	}
}

func readLDT() error {
	var buf [16]byte
	_, _, n := unix.Syscall(unix.SYS_MODIFY_LDT, 0, uintptr(unsafe.Pointer(&buf)), uintptr(len(buf))) // #nosec G103 -- a system call's argument
	return number(n)
}
