package warden

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// seccompGetActionAvail is SECCOMP_GET_ACTION_AVAIL of linux/seccomp.h.
const seccompGetActionAvail = 2

func seccompActionAvailable(action *uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompGetActionAvail, 0, uintptr(unsafe.Pointer(action))) // #nosec G103 -- seccomp(2) reads one word
	if errno != 0 {
		return fmt.Errorf("seccomp(GET_ACTION_AVAIL): %w", errno)
	}
	return nil
}
