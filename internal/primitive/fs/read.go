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
	// Looked at before it is opened, because opening a device may do something;
	// and after, because it may have been replaced.
	st, err := look(at, name)
	if err != nil {
		return nil, s.refused(ctx, what, p, err)
	}
	if err := s.readable(ctx, what, p, &st); err != nil {
		return nil, err
	}
	fd, err := beneath(at, []string{name}, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, s.refused(ctx, what, p, err)
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = s.readable(ctx, what, p, &st)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	f := &File{Info: s.info(p, -1, name, &st), Modified: time.Unix(st.Mtim.Unix())}
	f.ContentType = s.typeOf(fd, name)
	f.File = os.NewFile(uintptr(fd), name) // #nosec G115 -- a descriptor
	return f, nil
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
