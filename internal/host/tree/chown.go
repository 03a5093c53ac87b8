package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Chown gives everything at and below path to one id. It is for data that was
// kept while its agent's account was made anew with another range; nothing of
// the agent may run meanwhile. Links themselves are changed, never their
// targets; other file systems are not entered. A file with more than one hard
// link is changed too: it could only be linked within this tree, because
// nothing else on this file system was ever writable for the former owner.
func Chown(path string, uid, gid uint32) error {
	parent, err := Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	return chownAt(int(parent.f.Fd()), filepath.Base(path), path, uid, gid)
}

func chownAt(dirfd int, name, path string, uid, gid uint32) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("tree: stat %s: %w", path, err)
	}
	if st.Uid != uid || st.Gid != gid {
		if err := unix.Fchownat(dirfd, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("tree: give %s to %d: %w", path, uid, err)
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolve})
	if errors.Is(err, unix.EXDEV) {
		return nil // a mount of somebody else
	}
	if err != nil {
		return fmt.Errorf("tree: open %s: %w", path, err)
	}
	d := os.NewFile(uintptr(fd), path) // #nosec G115 -- a descriptor
	names, err := d.Readdirnames(-1)
	for _, n := range names {
		if err != nil {
			break
		}
		err = chownAt(fd, n, filepath.Join(path, n), uid, gid)
	}
	return errors.Join(err, d.Close())
}

// Owner gives the owner of path itself; ok is false when it is not there.
func Owner(path string) (uid uint32, ok bool, err error) {
	parent, err := Open(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = parent.Close() }()
	var st unix.Stat_t
	switch err := unix.Fstatat(int(parent.f.Fd()), filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("tree: stat %s: %w", path, err)
	}
	return st.Uid, true, nil
}

// WriteFile writes a root-owned file beside and renames it, so that a reader
// sees the old or the new content and a link that stands there is replaced,
// not followed. The parent must belong to root.
func WriteFile(path string, data []byte, mode uint32, gid uint32) (err error) {
	parent, err := Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	dirfd := int(parent.f.Fd())
	tmp := "." + filepath.Base(path) + ".new"
	if err := unix.Unlinkat(dirfd, tmp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("tree: clear %s: %w", tmp, err)
	}
	fd, err := unix.Openat(dirfd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("tree: write %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path) // #nosec G115 -- a descriptor
	_, err = f.Write(data)
	if err == nil {
		err = unix.Fchown(fd, 0, int(gid))
	}
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = unix.Renameat(dirfd, tmp, dirfd, filepath.Base(path))
	}
	if err != nil {
		_ = unix.Unlinkat(dirfd, tmp, 0)
		return fmt.Errorf("tree: write %s: %w", path, err)
	}
	return nil
}
