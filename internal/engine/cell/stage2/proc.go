package stage2

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
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

const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func mountProc() error {
	if err := unix.Mount("proc", "/proc", "proc", safe, "hidepid=invisible"); err != nil {
		return fmt.Errorf("stage 2: mount /proc: %w (is /proc of the starter fully visible?)", err)
	}
	return nil
}

// coverProc hides what [maskedProc] names. What this kernel does not have
// needs no cover.
func coverProc() error {
	for _, path := range maskedProc {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("stage 2: mask %s: %w", path, err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.Mount("tmpfs", path, "tmpfs", safe|unix.MS_RDONLY, "size=0,mode=0555,nr_inodes=2")
		} else {
			err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("stage 2: mask %s: %w", path, err)
		}
	}
	for _, path := range readOnlyProc {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("stage 2: %s read-only: %w", path, err)
		}
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err == nil {
			err = unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("stage 2: %s read-only: %w", path, err)
		}
	}
	return nil
}
