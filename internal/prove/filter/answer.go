package filter

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Answer is what a filter returns: an action and 16 bits of data.
type Answer uint32

// Allowed says whether the call goes through. Everything else is refused, kills
// or hands the call to somebody.
func (a Answer) Allowed() bool {
	switch uint32(a) & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_LOG:
		return true
	}
	return false
}

// String names the answer as seccomp(2) does.
func (a Answer) String() string {
	data := uint32(a) & unix.SECCOMP_RET_DATA
	switch uint32(a) & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW:
		return "ALLOW"
	case unix.SECCOMP_RET_LOG:
		return "LOG"
	case unix.SECCOMP_RET_ERRNO:
		if name := unix.ErrnoName(unix.Errno(data)); name != "" {
			return name
		}
		return fmt.Sprintf("ERRNO(%d)", data)
	case unix.SECCOMP_RET_KILL_PROCESS:
		return "KILL_PROCESS"
	case unix.SECCOMP_RET_KILL_THREAD:
		return "KILL_THREAD"
	case unix.SECCOMP_RET_TRAP:
		return "TRAP"
	case unix.SECCOMP_RET_TRACE:
		return "TRACE"
	case unix.SECCOMP_RET_USER_NOTIF:
		return "USER_NOTIF"
	}
	return fmt.Sprintf("%#x", uint32(a))
}

// stronger says whether the kernel prefers a to b when two filters of one
// thread answer differently: the lower action wins, as a signed number
// (kernel/seccomp.c, ACTION_ONLY).
func (a Answer) stronger(b Answer) bool {
	const action = unix.SECCOMP_RET_ACTION_FULL
	return int32(uint32(a)&action) < int32(uint32(b)&action) // #nosec G115 -- as the kernel compares them
}

// Strongest gives the answer that counts of those of all filters of a thread.
func Strongest(answers []Answer) Answer {
	out := Answer(unix.SECCOMP_RET_ALLOW)
	for _, a := range answers {
		if a.stronger(out) {
			out = a
		}
	}
	return out
}
