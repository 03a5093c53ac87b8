package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// folders are the descriptors from the root to a folder, and what was made on
// the way.
type folders struct {
	fds   []int
	names []string // names[i] is in fds[i]
	made  []int    // indexes of names
}

func (f *folders) last() int { return f.fds[len(f.fds)-1] }

func (f *folders) close() {
	for _, fd := range f.fds {
		_ = unix.Close(fd)
	}
}

// undo removes what was made, where nobody has put anything into it.
func (f *folders) undo(s *Store) {
	for _, i := range slices.Backward(f.made) {
		if unix.Unlinkat(f.fds[i], f.names[i], unix.AT_REMOVEDIR) != nil {
			return
		}
		s.budget.Give(0, 1)
	}
}

// makeFolders opens a folder, and makes it and those above where they are
// missing; those are on disk when it returns, because others may be told of
// files in them next. The caller holds the lock, and closes what is given, always.
func (s *Store) makeFolders(ctx context.Context, what string, p Path) (opened folders, err error) {
	defer func() {
		if err != nil {
			opened.undo(s)
		}
	}()
	opened.names = p.names
	fd, err := beneath(s.root, nil, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return opened, fmt.Errorf("open the agent's folder: %w", err)
	}
	opened.fds = append(opened.fds, fd)
	for i, name := range p.names {
		at, here := opened.last(), Path{p.names[:i+1]}
		next, err := beneath(at, []string{name}, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			if err := s.makeFolder(ctx, what, here, at, name); err != nil {
				return opened, err
			}
			opened.made = append(opened.made, i)
			next, err = beneath(at, []string{name}, unix.O_RDONLY|unix.O_DIRECTORY)
		}
		if err != nil {
			return opened, s.refused(ctx, what, here, err)
		}
		opened.fds = append(opened.fds, next)
	}
	for _, i := range slices.Backward(opened.made) {
		if err := syncFolder(opened.fds[i]); err != nil {
			return opened, err
		}
	}
	return opened, nil
}

func (s *Store) makeFolder(ctx context.Context, what string, p Path, dir int, name string) error {
	if err := s.free(what, p, dir, name); err != nil {
		return err
	}
	if err := s.budget.Take(ctx, what, 0, 1); err != nil {
		return err
	}
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		s.budget.Give(0, 1)
		return s.refused(ctx, what, p, err)
	}
	return nil
}

// Mkdir makes a folder and those above it; one that is there is left alone.
// It says whether it made it.
func (s *Store) Mkdir(ctx context.Context, what string, p Path) (bool, error) {
	return s.mkdir(ctx, what, p, nil)
}

func (s *Store) mkdir(ctx context.Context, what string, p Path, c check) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.ask(); err != nil {
		return false, err
	}
	opened, err := s.makeFolders(ctx, what, p)
	opened.close()
	return len(opened.made) > 0, err
}

// Delete removes a file, or a folder: an empty one, or with all that is in it.
// What is no file or folder is left, and stops it.
func (s *Store) Delete(ctx context.Context, what string, p Path, recursive bool) error {
	return s.delete(ctx, what, p, recursive, nil)
}

func (s *Store) delete(ctx context.Context, what string, p Path, recursive bool, c check) error {
	if p.Root() {
		return tool.Refuse(deny.ToolUnsafe, what, "the agent's own folder cannot be removed", "delete what is in it")
	}
	dir, name := p.parent()
	fd, err := s.folder(dir)
	if err != nil {
		return s.refused(ctx, what, p, err)
	}
	defer unix.Close(fd)
	if err := s.unlink(ctx, what, p, fd, name, recursive, c); err != nil {
		return err
	}
	return syncFolder(fd)
}

func (s *Store) unlink(ctx context.Context, what string, p Path, dir int, name string, recursive bool, c check) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.ask(); err != nil {
		return err
	}
	return s.remove(ctx, what, p, dir, name, recursive)
}

// remove is called with the lock held. What it removed before it failed stays
// removed, and is given back.
func (s *Store) remove(ctx context.Context, what string, p Path, dir int, name string, recursive bool) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	st, err := look(dir, name)
	if err != nil {
		return s.refused(ctx, what, p, err)
	}
	switch s.kindOf(&st) {
	case file:
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return s.refused(ctx, what, p, err)
		}
		s.budget.Give(st.Size, 1)
		return nil
	case directory:
		if recursive {
			if err := s.empty(ctx, what, p, dir, name); err != nil {
				return err
			}
		}
		if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil {
			return s.refused(ctx, what, p, err)
		}
		s.budget.Give(0, 1)
		return nil
	case other:
	}
	return s.foreign(ctx, what, p)
}

func (s *Store) empty(ctx context.Context, what string, p Path, dir int, name string) error {
	sub, err := beneath(dir, []string{name}, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return s.refused(ctx, what, p, err)
	}
	defer unix.Close(sub)
	names, err := entries(sub, -1)
	if err != nil {
		return s.refused(ctx, what, p, err)
	}
	for _, n := range names {
		if err := s.remove(ctx, what, Path{append(slices.Clone(p.names), n)}, sub, n, true); err != nil {
			return err
		}
	}
	return nil
}

// Stat says what a path is.
func (s *Store) Stat(ctx context.Context, what string, p Path) (Info, error) {
	if p.Root() {
		var st unix.Stat_t
		if err := unix.Fstat(s.root, &st); err != nil {
			return Info{}, fmt.Errorf("stat the agent's folder: %w", err)
		}
		return s.info(p, -1, "", &st), nil
	}
	dir, name := p.parent()
	fd, err := s.folder(dir)
	if err != nil {
		return Info{}, s.refused(ctx, what, p, err)
	}
	defer unix.Close(fd)
	st, err := look(fd, name)
	if err != nil {
		return Info{}, s.refused(ctx, what, p, err)
	}
	if s.kindOf(&st) == other {
		return Info{}, s.foreign(ctx, what, p)
	}
	return s.info(p, fd, name, &st), nil
}

// info tells the content type as well where dir is a descriptor.
func (s *Store) info(p Path, dir int, name string, st *unix.Stat_t) Info {
	i := Info{Path: p.String(), ModifiedAt: moment(st)}
	switch s.kindOf(st) {
	case file:
		i.Type, i.SizeBytes = "file", st.Size
		if dir < 0 {
			break
		}
		if fd, err := beneath(dir, []string{name}, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW); err == nil {
			i.ContentType = s.typeOf(fd, name)
			_ = unix.Close(fd)
		}
	case directory:
		i.Type = "directory"
	case other:
		i.Type = "other"
	}
	return i
}

func moment(st *unix.Stat_t) string {
	return time.Unix(st.Mtim.Unix()).UTC().Format(time.RFC3339Nano)
}

// Entry is one name in a folder.
type Entry struct {
	Name string `json:"name"`
	Info
}

// List gives what is in a folder, by name, without content types. At most
// [MaxEntries] are there, unless somebody else put them there.
func (s *Store) List(ctx context.Context, what string, p Path) ([]Entry, error) {
	fd, err := s.folder(p)
	if err != nil {
		return nil, s.refused(ctx, what, p, err)
	}
	defer unix.Close(fd)
	names, err := entries(fd, MaxEntries)
	if err != nil {
		return nil, s.refused(ctx, what, p, err)
	}
	slices.Sort(names)
	out := make([]Entry, 0, len(names))
	for _, n := range names {
		st, err := look(fd, n)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, s.refused(ctx, what, p, err)
		}
		out = append(out, Entry{Name: n, Info: s.info(Path{append(slices.Clone(p.names), n)}, -1, n, &st)})
	}
	return out, nil
}
