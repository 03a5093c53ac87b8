package stage2

import (
	"errors"
	"fmt"
	"strings"

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

// enterRoot builds the container's tree and makes it the only one.
func enterRoot(p *Plan) error {
	// Nothing mounted here may show outside.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("stage 2: cut mount propagation: %w", err)
	}
	// Any folder does: this mount namespace is ours and the old tree goes away.
	if err := unix.MoveMount(p.Root, "", unix.AT_FDCWD, "/tmp", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("stage 2: place the root: %w", err)
	}
	if err := unix.Fchdir(p.Root); err != nil {
		return fmt.Errorf("stage 2: enter the root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("stage 2: pivot_root: %w", err)
	}
	// The old root now lies on top of the new one.
	if p.Proc < 0 {
		// A fresh procfs may only be mounted while the old one is still in
		// sight (the kernel's check that nothing hidden gets uncovered).
		if err := mountProc(); err != nil {
			return err
		}
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("stage 2: let go of the old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("stage 2: enter the root: %w", err)
	}
	if p.Proc >= 0 {
		if err := place(Mount{FD: p.Proc, Target: "/proc"}); err != nil {
			return err
		}
	}
	if err := place(Mount{FD: p.Dev, Target: "/dev"}); err != nil {
		return err
	}
	if err := mountTerminals(); err != nil {
		return err
	}
	for _, m := range p.Mounts {
		if err := place(m); err != nil {
			return err
		}
	}
	return coverProc()
}

// place moves a detached mount to its target. The target is opened without
// following links and inside the root, since it may lie in a folder that the
// agent can write.
func place(m Mount) error {
	at, err := openTarget(m.Target)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			kind := "folder"
			if m.File {
				kind = "file"
			}
			return fmt.Errorf("stage 2: the root has no mount point %s: add an empty %s of that name to the image (it is mounted read-only, so none can be made now)", m.Target, kind)
		}
		return fmt.Errorf("stage 2: mount point %s: %w", m.Target, err)
	}
	defer func() { _ = unix.Close(at) }()
	if err := unix.MoveMount(m.FD, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("stage 2: mount on %s: %w", m.Target, err)
	}
	return nil
}

func openTarget(path string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, "/"+strings.TrimLeft(path, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func mountProc() error {
	err := unix.Mount("proc", "/proc", "proc", safe, "hidepid=invisible")
	if errors.Is(err, unix.ENOENT) {
		return errors.New("stage 2: the root has no mount point /proc: add an empty folder of that name to the image")
	}
	if err != nil {
		return fmt.Errorf("stage 2: mount /proc: %w (is /proc of the starter fully visible?)", err)
	}
	return nil
}

func mountTerminals() error {
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("stage 2: mount /dev/pts: %w", err)
	}
	return nil
}

// coverProc hides what [maskedProc] names. What this kernel does not have
// needs no cover. It runs in every container; in one that shares the host's
// PID namespace (a decoy) it covers that container's view only.
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
