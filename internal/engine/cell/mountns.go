package cell

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// enter gives the calling thread (locked, and thrown away afterwards) a mount
// namespace that holds this tree and nothing else, a copy of bare. What is
// forked from it gets a copy; in a user namespace of its own, with every mount
// locked (see mount_namespaces(7)). The work is done here and not in the child
// because a prepared container has it behind it.
//
// After it, no path of the host is visible to this thread.
func (t *tree) enter(bare *Bare) error {
	if err := bare.Enter(); err != nil {
		return err
	}
	if err := SetRoot(t.root); err != nil {
		return err
	}
	// The starter's procfs, which the child covers with that of its own PID
	// namespace: the kernel lets a user namespace mount one only where another
	// is in full sight.
	if err := place(placed{fd: t.proc, target: "/proc"}); err != nil {
		return err
	}
	if err := place(placed{fd: t.dev, target: "/dev"}); err != nil {
		return err
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("cell: mount /dev/pts: %w", err)
	}
	for _, m := range t.mounts {
		if err := place(m); err != nil {
			return err
		}
	}
	return nil
}

// place moves a detached mount to its target. The target is opened without
// following links and inside the root, since it may lie in a folder that the
// agent can write.
func place(m placed) error { return placeBelow(unix.AT_FDCWD, m) }

// placeBelow places a mount below root, or below the root of the mount
// namespace for AT_FDCWD.
func placeBelow(root int, m placed) error {
	at, err := openTarget(root, m.target)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			kind := "folder"
			if m.file {
				kind = "file"
			}
			return fmt.Errorf("cell: the root has no mount point %s: add an empty %s of that name to the image (it is mounted read-only, so none can be made now)", m.target, kind)
		}
		return fmt.Errorf("cell: mount point %s: %w", m.target, err)
	}
	defer func() { _ = unix.Close(at) }()
	if err := unix.MoveMount(m.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("cell: mount on %s: %w", m.target, err)
	}
	return nil
}

func openTarget(root int, path string) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	if root != unix.AT_FDCWD {
		how.Resolve |= unix.RESOLVE_BENEATH
		return unix.Openat2(root, strings.TrimLeft(path, "/"), how)
	}
	return unix.Openat2(root, "/"+strings.TrimLeft(path, "/"), how)
}
