package cell

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/forked"
)

// Paths below /proc that say too much or act on the whole host. Files are
// covered with /dev/null, folders with an empty one; the list follows the OCI
// runtime's defaults (opencontainers/runtime-tools, config "maskedPaths" and
// "readonlyPaths").
var (
	maskedProc = []string{
		"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/proc/kallsyms",
		"/proc/kmsg", "/proc/sysrq-trigger", "/proc/config.gz", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup",
	}
	readOnlyProc = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"}
)

// Masked lists the paths below /proc that no container shows, under any engine.
func Masked() []string { return slices.Clone(maskedProc) }

const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// writeProc adds a fresh procfs of the child's PID namespace, over the
// starter's, and covers what it should not show. Which of those this kernel has
// is read from the starter's, which the calling thread sees on /proc: what it
// does not have needs no cover. Only a process of the PID namespace can mount
// its procfs.
func writeProc(s *forked.Script) error {
	s.Call("mount /proc (is /proc of the starter fully visible?)", unix.SYS_MOUNT, "proc", "/proc", "proc", safe, "hidepid=invisible")
	for _, path := range maskedProc {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("mask %s: %w", path, err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			s.Call("mask "+path, unix.SYS_MOUNT, "tmpfs", path, "tmpfs", safe|unix.MS_RDONLY, "size=0,mode=0555,nr_inodes=2")
		} else {
			s.Call("mask "+path, unix.SYS_MOUNT, "/dev/null", path, 0, unix.MS_BIND, 0)
		}
	}
	for _, path := range readOnlyProc {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); errors.Is(err, unix.ENOENT) {
			continue
		}
		what, fd := "make "+path+" read-only", &forked.Var{}
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		s.Call(what, unix.SYS_OPEN_TREE, unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC, forked.Save(fd))
		s.Call(what, unix.SYS_MOUNT_SETATTR, fd, "", unix.AT_EMPTY_PATH, unsafe.Pointer(attr), unsafe.Sizeof(*attr)) // #nosec G103 -- the call's own form
		s.Call(what, unix.SYS_MOVE_MOUNT, fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
		s.Call(what, unix.SYS_CLOSE, fd)
	}
	return nil
}
