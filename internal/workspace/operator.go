package workspace

import (
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operator is the person behind sudo, or nil when there is nobody else. It
// gives the function for Side.As, which runs its argument on a thread that is
// that person for the kernel, with that person's groups and no privileges.
func Operator() (func(f func() error) error, error) {
	text := os.Getenv("SUDO_UID")
	if os.Geteuid() != 0 || text == "" || text == "0" {
		return nil, nil
	}
	u, err := user.LookupId(text)
	if err != nil {
		return nil, fmt.Errorf("SUDO_UID %.20q is nobody on this host: %w", text, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user id %q: %w", u.Uid, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("group id %q: %w", u.Gid, err)
	}
	groups := []uint32{uint32(gid)}
	if list, err := u.GroupIds(); err == nil {
		for _, g := range list {
			if n, err := strconv.ParseUint(g, 10, 32); err == nil {
				groups = append(groups, uint32(n))
			}
		}
	}
	return func(f func() error) error {
		done := make(chan error, 1)
		go func() {
			// The thread keeps the person's identity: it is never unlocked, so it
			// ends with this goroutine.
			runtime.LockOSThread()
			if err := become(uint32(uid), uint32(gid), groups); err != nil { // #nosec G115 -- parsed with 32 bits
				done <- err
				return
			}
			done <- f()
		}()
		return <-done
	}, nil
}

// become changes this thread alone: the raw calls, unlike those of syscall, do
// not speak for all threads.
func become(uid, gid uint32, groups []uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 { // #nosec G103 -- the kernel's own form
		return fmt.Errorf("setgroups: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return fmt.Errorf("setresgid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return fmt.Errorf("setresuid: %w", e)
	}
	return nil
}
