package tree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Remove deletes path and everything below it without following a link or
// leaving its file system. The parent must belong to root. A path that is not
// there is removed already. Nothing of an agent may run in it any more.
//
// An agent nests folders as deep as it likes, so neither descriptors nor
// memory grow with the depth here: what lies in a folder of a folder is moved
// up beside it before that folder goes.
func Remove(path string) error {
	parent, err := Open(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	if err := removeAt(int(parent.f.Fd()), filepath.Base(path)); err != nil {
		return fmt.Errorf("tree: remove %s: %w", path, err)
	}
	return nil
}

// removeAt removes one entry of the folder dirfd, whatever it is.
func removeAt(dirfd int, name string) error {
	if isFolder, err := unlink(dirfd, name); !isFolder {
		return err
	}
	top, err := openFolder(dirfd, name)
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	r := remover{top: top}
	for {
		n, err := r.pass()
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
}

// remover empties one folder.
type remover struct {
	top  *os.File
	next uint64 // numbers what is moved up
}

// pass removes what lies in top, and says how many entries it met. What lay in
// their folders lies in top afterwards.
func (r *remover) pass() (met int, err error) {
	if _, err := r.top.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	for {
		names, err := r.top.Readdirnames(batch)
		for _, n := range names {
			if err := r.empty(n); err != nil {
				return 0, err
			}
		}
		met += len(names)
		if errors.Is(err, io.EOF) {
			return met, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// batch is how many names of a folder are held at a time.
const batch = 1024

// empty removes one entry of top, whose own folders it moves to top.
func (r *remover) empty(name string) error {
	fd := int(r.top.Fd()) // #nosec G115 -- a descriptor
	if isFolder, err := unlink(fd, name); !isFolder {
		return err
	}
	sub, err := openFolder(fd, name)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	for {
		names, err := sub.Readdirnames(batch)
		for _, n := range names {
			if err := r.moveUp(sub, n); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		// What was read is gone from the folder, so reading starts anew.
		if _, err := sub.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
}

// moveUp removes a file, or moves a folder to top.
func (r *remover) moveUp(from *os.File, name string) error {
	if isFolder, err := unlink(int(from.Fd()), name); !isFolder { // #nosec G115 -- a descriptor
		return err
	}
	for {
		r.next++
		err := unix.Renameat2(int(from.Fd()), name, int(r.top.Fd()), ".removed-"+strconv.FormatUint(r.next, 36), unix.RENAME_NOREPLACE) // #nosec G115 -- descriptors
		if !errors.Is(err, unix.EEXIST) {                                                                                               // else an agent's own name, or what an earlier attempt left
			return err
		}
	}
}

// unlink removes an entry that is no folder.
func unlink(dirfd int, name string) (isFolder bool, err error) {
	switch err := unix.Unlinkat(dirfd, name, 0); {
	case err == nil, errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EISDIR):
		return true, nil
	default:
		return false, err
	}
}

// openFolder opens a folder for reading, itself and no other.
func openFolder(dirfd int, name string) (*os.File, error) {
	fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolve})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "folder"), nil // #nosec G115 -- a descriptor
}
