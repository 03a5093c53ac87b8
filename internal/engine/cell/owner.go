package cell

import (
	"fmt"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
)

// ownerID is the host id to which the container's user namespace belongs.
//
// The kernel counts inotify instances and watches, pending signals, message
// queues, locked memory and processes per user, and what is inside a user
// namespace also against whoever made it (kernel/ucount.c, inc_ucount). Were
// that root for all, one agent could use up what every other agent and the
// host's own services have: 128 inotify instances by default. So each agent's
// namespaces belong to an id of its own range. No process ever has that id:
// the owner of a user namespace has every capability in it (capability.c,
// cap_capable).
func ownerID(s *engine.Spec) uint32 {
	m := s.User.Map[0]
	return m.Host - m.Inside + layout.OwnerID
}

// noSetuidFixup keeps capabilities when the effective id changes from 0
// (SECBIT_NO_SETUID_FIXUP, capabilities(7)).
const noSetuidFixup = 1 << 2

// becomeOwner gives the calling thread alone, which is thrown away after the
// fork, the effective id of the namespace's owner. It keeps its capabilities,
// with which the id maps are written. The child gets ids of its own.
func becomeOwner(id uint32) error {
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	const keep = ^uintptr(0)
	// Raw, because the library's call changes every thread of the process.
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(id), keep); e != 0 {
		return fmt.Errorf("become the owner %d of the user namespace: %w", id, e)
	}
	return nil
}
