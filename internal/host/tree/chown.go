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
//
// It holds one folder open at a time, whatever the depth: the way back up is
// "..", checked to be the folder that it came from. A tree that changes under
// the walk, which only something that should not run can cause, is walked
// anew, for chownTries times.
func Chown(path string, uid, gid uint32) (err error) {
	parent, err := Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	o := giver{uid: uid, gid: gid}
	for range chownTries {
		if err = o.all(int(parent.f.Fd()), filepath.Base(path)); !changedMeanwhile(err) {
			break
		}
	}
	return wrapChown(path, err)
}

// chownTries is how often a tree that changes meanwhile is walked.
const chownTries = 100

var errMoved = errors.New("a folder was moved meanwhile: something of the agent still runs")

// changedMeanwhile says whether an error comes of a name that stood for
// something else when it was listed.
func changedMeanwhile(err error) bool {
	for _, e := range []error{errMoved, unix.ENOTDIR, unix.ENOENT, unix.ELOOP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// all gives away name and what is below.
func (o giver) all(dirfd int, name string) error {
	dir, err := o.give(dirfd, name)
	if err != nil || dir == nil {
		return err
	}
	return o.walk(dir)
}

func wrapChown(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tree: give %s and what is below to another id: %w", path, err)
}

// giver gives entries to one id.
type giver struct{ uid, gid uint32 }

// place is a folder that is being walked: which one it is, and which of its
// folders are left.
type place struct {
	dev, ino uint64
	left     []string
}

// walk gives away everything below dir, which it closes.
func (o giver) walk(dir *os.File) error {
	defer func() { _ = dir.Close() }()
	here, err := o.entries(dir)
	if err != nil {
		return err
	}
	stack := []place{here}
	for {
		at := &stack[len(stack)-1]
		if n := len(at.left); n > 0 {
			name := at.left[n-1]
			at.left = at.left[:n-1]
			sub, err := openFolder(int(dir.Fd()), name)
			if errors.Is(err, unix.EXDEV) {
				continue // a mount of somebody else
			}
			if err != nil {
				return err
			}
			_ = dir.Close()
			dir = sub
			if here, err = o.entries(dir); err != nil {
				return err
			}
			stack = append(stack, here)
			continue
		}
		stack = stack[:len(stack)-1]
		if len(stack) == 0 {
			return nil
		}
		fd, err := unix.Openat(int(dir.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		_ = dir.Close()
		dir = os.NewFile(uintptr(fd), "folder") // #nosec G115 -- a descriptor
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if back := stack[len(stack)-1]; st.Dev != back.dev || st.Ino != back.ino {
			return errMoved
		}
	}
}

// entries gives away what lies in dir, and lists its folders.
func (o giver) entries(dir *os.File) (place, error) {
	fd := int(dir.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return place{}, err
	}
	p := place{dev: st.Dev, ino: st.Ino}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return p, err
	}
	for _, n := range names {
		isDir, err := o.one(fd, n)
		if err != nil {
			return p, err
		}
		if isDir {
			p.left = append(p.left, n)
		}
	}
	return p, nil
}

// one gives one entry away and says whether it is a folder.
func (o giver) one(dirfd int, name string) (isDir bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	if st.Uid != o.uid || st.Gid != o.gid {
		if err := unix.Fchownat(dirfd, name, int(o.uid), int(o.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return false, err
		}
	}
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// give gives the top away and opens it, when it is a folder.
func (o giver) give(dirfd int, name string) (*os.File, error) {
	isDir, err := o.one(dirfd, name)
	if err != nil || !isDir {
		return nil, err
	}
	dir, err := openFolder(dirfd, name)
	if errors.Is(err, unix.EXDEV) {
		return nil, nil // a mount of somebody else
	}
	return dir, err
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
