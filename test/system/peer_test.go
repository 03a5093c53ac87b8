package system

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// connectAs connects to a unix socket as another user. It runs on a thread that
// is thrown away, because that thread keeps the id. The error is an errno.
func connectAs(socket string, id uint32) (int, error) {
	type end struct {
		fd  int
		err error
	}
	done := make(chan end)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			done <- end{-1, err}
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
				done <- end{-1, e}
				return
			}
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		if err != nil {
			_ = unix.Close(fd)
			fd = -1
		}
		done <- end{fd, err}
	}()
	e := <-done
	return e.fd, e.err
}
