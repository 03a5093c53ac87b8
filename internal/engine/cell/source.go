package cell

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// resolve forbids every way by which a name could lead elsewhere.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openSource opens a path of the host for mounting. Every parent must be
// owned by root and writable by nobody else, so that no agent can swap a
// folder on the way; no component may be a link. The last one may belong to
// an agent unless rootOwned.
func openSource(path string, rootOwned bool) (int, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return -1, fmt.Errorf("cell: mount source %q: give an absolute path without '.', '..' or doubled slashes", path)
	}
	at, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cell: open /: %w", err)
	}
	walked := ""
	names := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if path == "/" {
		names = nil
	}
	for i, name := range names {
		if err := rootOnly(at, walked+"/"); err != nil {
			_ = unix.Close(at)
			return -1, fmt.Errorf("cell: mount source %s: %w", path, err)
		}
		flags := uint64(unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW)
		if i < len(names)-1 {
			flags |= unix.O_DIRECTORY
		}
		next, err := unix.Openat2(at, name, &unix.OpenHow{Flags: flags, Resolve: resolve})
		_ = unix.Close(at)
		walked += "/" + name
		if errors.Is(err, unix.ELOOP) || err == nil && isLink(next) {
			if err == nil {
				_ = unix.Close(next)
			}
			return -1, fmt.Errorf("cell: mount source %s: %s is a symbolic link: name the place it leads to", path, walked)
		}
		if err != nil {
			return -1, fmt.Errorf("cell: mount source %s: open %s: %w", path, walked, err)
		}
		at = next
	}
	if rootOwned {
		if err := rootOnly(at, path); err != nil {
			_ = unix.Close(at)
			return -1, fmt.Errorf("cell: mount source %s: %w", path, err)
		}
	}
	return at, nil
}

func isLink(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// rootOnly refuses a folder that someone other than root could change.
func rootOnly(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	if st.Uid != 0 {
		return fmt.Errorf("%s belongs to user %d: it must belong to root, or that user could swap what is mounted", name, st.Uid)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o: nobody but root may write it, or what is mounted could be swapped", name, st.Mode&0o7777)
	}
	return nil
}

// attributes gives the flags of a mount: always nosuid and nodev.
func attributes(writable, exec bool) uint64 {
	a := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if !writable {
		a |= unix.MOUNT_ATTR_RDONLY
	}
	if !exec {
		a |= unix.MOUNT_ATTR_NOEXEC
	}
	return a
}

// cloneMount makes a detached mount of what fd refers to.
func cloneMount(fd int, attr uint64, recursive bool) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	at := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
		at |= unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(fd, "", flags)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	if err := unix.MountSetattr(tree, "", at, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE}); err != nil {
		_ = unix.Close(tree)
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return tree, nil
}

// bindMount makes a detached mount of a host path, and says whether it is a file.
func bindMount(path string, rootOwned bool, attr uint64) (fd int, file bool, err error) {
	src, err := openSource(path, rootOwned)
	if err != nil {
		return -1, false, err
	}
	defer func() { _ = unix.Close(src) }()
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return -1, false, fmt.Errorf("cell: mount source %s: %w", path, err)
	}
	fd, err = cloneMount(src, attr, false)
	if err != nil {
		return -1, false, fmt.Errorf("cell: mount source %s: %w", path, err)
	}
	return fd, st.Mode&unix.S_IFMT != unix.S_IFDIR, nil
}

// MemoryMount makes a detached tmpfs. It belongs to root's user namespace, so
// the container cannot change its size or flags.
func MemoryMount(attr uint64, options map[string]string) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("cell: tmpfs: fsopen: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	for k, v := range options {
		if err := unix.FsconfigSetString(fs, k, v); err != nil {
			return -1, fmt.Errorf("cell: tmpfs %s=%s: %w", k, v, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("cell: tmpfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(attr)) // #nosec G115 -- a handful of flags
	if err != nil {
		return -1, fmt.Errorf("cell: tmpfs: fsmount: %w", err)
	}
	return fd, nil
}

func tmpfsFor(m engine.Mount, owner uint32) (int, error) {
	mode := m.Mode
	if mode == 0 {
		mode = 0o700
	}
	size := m.Size
	if size <= 0 {
		return -1, fmt.Errorf("cell: mount %s: a tmpfs needs a size in bytes", m.Target)
	}
	id := fmt.Sprint(owner)
	return MemoryMount(attributes(true, m.Exec), map[string]string{
		"size": fmt.Sprint(size), "mode": fmt.Sprintf("%o", mode), "uid": id, "gid": id,
	})
}
