package fs

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// File is an open file: as it was when it was opened, whatever is written
// meanwhile.
type File struct {
	*os.File
	Info
	Modified time.Time
}

// Open opens a file for reading. The caller closes it. what names the caller
// in refusals.
func (s *Store) Open(ctx context.Context, what string, p Path) (*File, error) {
	if p.Root() {
		return nil, isFolder(what, p)
	}
	dir, name := p.parent()
	at, err := s.folder(dir)
	if err != nil {
		return nil, s.refused(ctx, what, p, err)
	}
	defer unix.Close(at)
	fd, st, err := s.opened(ctx, what, p, at, name)
	if err != nil {
		return nil, err
	}
	f := &File{Info: s.info(p, -1, name, &st), Modified: time.Unix(st.Mtim.Unix())}
	f.ContentType = s.typeOf(fd, name)
	f.File = os.NewFile(uintptr(fd), name) // #nosec G115 -- a descriptor
	return f, nil
}

// opened opens a file in a folder and gives what it is.
//
// It is looked at before it is opened, because opening a device may do
// something; and after, because it may have been replaced. Both must be the same
// file, unchanged, and have its name still: one with a second name that is taken
// away again has one name then, which is not the agent's.
func (s *Store) opened(ctx context.Context, what string, p Path, at int, name string) (fd int, st unix.Stat_t, err error) {
	for range maxLooks {
		before, err := look(at, name)
		if err != nil {
			return -1, st, s.refused(ctx, what, p, err)
		}
		if err := s.readable(ctx, what, p, &before); err != nil {
			return -1, st, err
		}
		if fd, err = beneath(at, []string{name}, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW); err != nil {
			return -1, st, s.refused(ctx, what, p, err)
		}
		if err = unix.Fstat(fd, &st); err == nil {
			err = s.readable(ctx, what, p, &st)
		}
		if err != nil {
			_ = unix.Close(fd)
			return -1, st, err
		}
		// Replaced since, it has no name left, and its change says no more.
		if st.Ino == before.Ino && st.Nlink == 0 || unchanged(&before, &st) && s.still(at, name, &st) {
			return fd, st, nil
		}
		_ = unix.Close(fd)
	}
	return -1, st, s.foreign(ctx, what, p)
}

// still says whether a name is what it was; what has not changed lately is.
func (s *Store) still(at int, name string, was *unix.Stat_t) bool {
	if !changing(was) {
		return true
	}
	now, err := look(at, name)
	return err == nil && unchanged(was, &now)
}

func (s *Store) readable(ctx context.Context, what string, p Path, st *unix.Stat_t) error {
	// A file that is replaced while it is open has no name left.
	if st.Nlink == 0 && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Dev == s.dev {
		return nil
	}
	switch s.kindOf(st) {
	case file:
		return nil
	case directory:
		return isFolder(what, p)
	case other:
	}
	return s.foreign(ctx, what, p)
}
