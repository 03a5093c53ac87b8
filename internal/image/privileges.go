package image

import (
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
)

// Confine confines this process, which handles bytes of strangers in the
// folder dir, with everything that it will start; log is told what the kernel
// cannot.
func Confine(dir string, log io.Writer) error {
	abi, err := confine.Builder(dir)
	if err == nil && abi < confine.WantedABI {
		_, err = fmt.Fprintf(log, "image: this kernel has Landlock ABI %d, not %d: less keeps the build in its folder\n", abi, confine.WantedABI)
	}
	return err
}

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
