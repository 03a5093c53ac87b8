package system

import (
	"golang.org/x/sys/unix"

	"bulkhead/internal/thread"
)

// connectAs connects to a unix socket as another user. It does so on a thread
// that is thrown away, because that thread keeps the id. The error is an errno.
func connectAs(socket string, id uint32) (fd int, err error) {
	thread.Run(func() {
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		// Raw calls: the library's change every thread of the process. The empty
		// list of groups first, then the ids, which takes the capabilities away.
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0},
			{unix.SYS_SETRESGID, uintptr(id), uintptr(id), uintptr(id)},
			{unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)},
		} {
			if _, _, e := unix.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
				err = e
				return
			}
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
	})
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
	}
	return fd, err
}
