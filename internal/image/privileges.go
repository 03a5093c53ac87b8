package image

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// NoNewPrivileges makes sure that nothing this process starts gains anything
// by a setuid program. The bit is each thread's own (prctl(2)), and a child
// has that of the thread that started it: so all threads get it. Needs a
// program without cgo.
func NoNewPrivileges() error {
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("no_new_privs: %w", e)
	}
	return nil
}
