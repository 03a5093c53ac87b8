package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OpenLeaf opens a folder that an agent owns, for reading, in a parent as Open
// takes it. What stands there must be a folder of id, not a link.
func OpenLeaf(path string, id uint32) (*os.File, error) {
	parent, err := Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }()
	fd, err := unix.Openat2(int(parent.f.Fd()), filepath.Base(path), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolve &^ unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("tree: open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path) // #nosec G115 -- a descriptor
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("tree: stat %s: %w", path, err), f.Close())
	}
	if st.Uid != id {
		return nil, errors.Join(fmt.Errorf("tree: %s belongs to id %d, not %d", path, st.Uid, id), f.Close())
	}
	return f, nil
}
