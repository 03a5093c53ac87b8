package tree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file of root's, of at most most bytes: every parent as Open
// takes it, no link, a regular file that belongs to root and is writable by
// root alone. With secret nobody else may read it either.
func ReadFile(path string, most int64, secret bool) ([]byte, error) {
	parent, err := Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }()
	f, st, err := parent.openFile(filepath.Base(path), resolve&^unix.RESOLVE_NO_XDEV)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	forbidden, mend := uint32(0o022), "writable by root alone (chown root %s && chmod go-w %s)"
	if secret {
		forbidden, mend = 0o077, "readable by root alone (chown root %s && chmod 600 %s)"
	}
	if st.Uid != 0 || st.Mode&forbidden != 0 {
		return nil, fmt.Errorf("tree: %s is owned by id %d with mode %04o: it must belong to root and be "+mend, path, st.Uid, st.Mode&0o7777, path, path)
	}
	return readAll(f, path, most)
}

// ReadBeneath reads a regular file of at most most bytes below d, in a tree
// whose content is not to be trusted: no link is followed, and no mount is
// crossed. It gives fs.ErrNotExist when there is none.
func (d *Dir) ReadBeneath(name string, most int64) ([]byte, error) {
	f, _, err := d.openFile(name, resolve)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readAll(f, f.Name(), most)
}

// openFile opens a regular file without waiting for whatever else stands there.
func (d *Dir) openFile(name string, how uint64) (*os.File, *unix.Stat_t, error) {
	p := filepath.Join(d.path, name)
	fd, err := unix.Openat2(int(d.f.Fd()), name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: how,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("tree: open %s: %w", p, err)
	}
	f := os.NewFile(uintptr(fd), p) // #nosec G115 -- a descriptor
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("tree: stat %s: %w", p, err), f.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, errors.Join(fmt.Errorf("tree: %s is no regular file", p), f.Close())
	}
	return f, &st, nil
}

func readAll(f *os.File, path string, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("tree: read %s: %w", path, err)
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("tree: %s is longer than %d bytes", path, most)
	}
	return b, nil
}
