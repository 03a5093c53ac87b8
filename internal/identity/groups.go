package identity

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerGroups reads SO_PEERGROUPS (socket(7), Linux 4.13), which x/sys/unix has
// no wrapper for.
func peerGroups(fd int) ([]uint32, error) {
	for n := 64; n <= 65536; n *= 4 {
		buf := make([]uint32, n)
		size := uint32(n * 4)                                          // #nosec G115 -- at most 256 KiB
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), // #nosec G115 -- a descriptor
			unix.SOL_SOCKET, unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(&buf[0])), // #nosec G103 -- getsockopt fills buf
			uintptr(unsafe.Pointer(&size)), 0) // #nosec G103 -- and its size
		switch {
		case errno == 0:
			return buf[:size/4], nil
		case errors.Is(errno, unix.ERANGE):
			continue
		default:
			return nil, fmt.Errorf("identity: SO_PEERGROUPS: %w", errno)
		}
	}
	return nil, errors.New("identity: SO_PEERGROUPS: more than 65,536 groups")
}
