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

// landlockCreateRulesetVersion is LANDLOCK_CREATE_RULESET_VERSION of linux/landlock.h.
const landlockCreateRulesetVersion = 1

func landlockABI() error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, landlockCreateRulesetVersion)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	if abi < minLandlock {
		return fmt.Errorf("the kernel has Landlock ABI %d", abi)
	}
	return nil
}
