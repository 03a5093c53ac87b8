package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
)

// system is the running kernel.
type system struct{}

func (system) Root() bool { return os.Geteuid() == 0 }

func (system) LandlockABI() int { return confine.LandlockABI() }

// seccompGetActionAvail is SECCOMP_GET_ACTION_AVAIL of linux/seccomp.h (4.14):
// it asks without changing anything.
const seccompGetActionAvail = 2

func (system) Seccomp() error {
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompGetActionAvail, 0, uintptr(unsafe.Pointer(&action))) // #nosec G103 -- seccomp(2) reads one word
	if errno != 0 {
		return fmt.Errorf("seccomp(GET_ACTION_AVAIL): %w", errno)
	}
	return nil
}

func (system) Netfilter() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (system) Space(path string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, err
	}
	block := uint64(st.Bsize) // #nosec G115 -- never negative
	return Space{Bytes: st.Blocks * block, FreeBytes: st.Bavail * block, Inodes: st.Files, FreeInodes: st.Ffree}, nil
}

func (system) Clock() (time.Time, bool, error) {
	// Modes 0 only reads and needs no rights (adjtimex(2)).
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return time.Now(), err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, err
}

// versionTimeout bounds one program.
const versionTimeout = 5 * time.Second

func (system) Version(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version") // #nosec G204 -- a program of the system's own folders
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/nonexistent"}
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	if first = strings.TrimSpace(first); first == "" {
		return "", errors.New(path + " --version said nothing")
	}
	return first, nil
}
