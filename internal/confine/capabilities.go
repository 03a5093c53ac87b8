package confine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// lastCap finds the highest capability that this kernel knows, by asking.
func lastCap() uintptr {
	c := uintptr(0)
	for {
		if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c+1, 0); e != 0 {
			return c
		}
		c++
	}
}

// AllCaps is the mask of every capability of this kernel: what the first
// process of a user namespace holds.
func AllCaps() uint64 { return 1<<(lastCap()+1) - 1 }

// Caps are capability sets that a script starts from.
type Caps struct{ Permitted, Bounding uint64 }

// Full is what the first process of a new user namespace has.
func Full() Caps { return Caps{AllCaps(), AllCaps()} }

// Held is what the calling thread has, and a child of it in the same user
// namespace.
func Held() (Caps, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return Caps{}, fmt.Errorf("confine: capget: %w", err)
	}
	out := Caps{Permitted: uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32}
	for c := range lastCap() + 1 {
		if in, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0); e == 0 && in != 0 {
			out.Bounding |= 1 << c
		}
	}
	return out, nil
}
