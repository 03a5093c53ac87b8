package workspace

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of one tree.
const (
	MaxEntries  = 200_000
	MaxFile     = 1 << 30 // bytes
	MaxTotal    = 8 << 30 // bytes
	maxDepth    = 64
	maxNameSize = 255
)

const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// Side is one of the two trees.
type Side struct {
	Root *os.File // the folder; stays the caller's
	// As runs f with the identity that may read and write there. Nil: as is.
	As func(f func() error) error
	// Owner is given what is written; nil leaves it to the identity.
	Owner *uint32
}

func (s *Side) as(f func() error) error {
	if s.As == nil {
		return f()
	}
	return s.As(f)
}

// File is one regular file.
type File struct {
	Size int64
	Exec bool
}

// Left is what is not copied, and why.
type Left struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Listing is what a tree holds, by slash-separated path.
type Listing struct {
	Files map[string]File
	Left  []Left
}

// List walks the tree.
func (s *Side) List() (*Listing, error) {
	l := &Listing{Files: map[string]File{}}
	w := &walk{l: l}
	err := s.as(func() error {
		dir, err := openAt(s.Root, ".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		return w.folder(dir, "", 0)
	})
	return l, err
}

type walk struct {
	l       *Listing
	entries int
	total   int64
}

// folder walks dir and closes it.
func (w *walk) folder(dir *os.File, at string, depth int) error {
	defer func() { _ = dir.Close() }()
	if depth > maxDepth {
		w.leave(at, fmt.Sprintf("more than %d folders deep", maxDepth))
		return nil
	}
	for {
		names, err := dir.Readdirnames(256)
		for _, n := range names {
			if w.entries++; w.entries > MaxEntries {
				return fmt.Errorf("there are more than %d entries: remove what is not needed (caches, dependencies), or name a folder below", MaxEntries)
			}
			if err := w.entry(dir, path.Join(at, n), n, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read folder %q: %w", at, err)
		}
	}
}

func (w *walk) leave(at, why string) { w.l.Left = append(w.l.Left, Left{at, why}) }

func (w *walk) entry(dir *os.File, at, name string, depth int) error {
	if strings.EqualFold(name, ".git") {
		w.leave(at, "git's own files are programs for whoever uses git next")
		return nil
	}
	fd, err := descriptor(dir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // gone meanwhile
		}
		return fmt.Errorf("look at %q: %w", at, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if st.Size > MaxFile {
			w.leave(at, fmt.Sprintf("larger than %d MiB", MaxFile>>20))
			return nil
		}
		if w.total += st.Size; w.total > MaxTotal {
			return fmt.Errorf("the files are more than %d GiB: remove what is not needed", MaxTotal>>30)
		}
		w.l.Files[at] = File{Size: st.Size, Exec: st.Mode&0o111 != 0}
	case unix.S_IFDIR:
		sub, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			w.leave(at, "cannot be opened: "+err.Error())
			return nil //nolint:nilerr // it is left out, and the list says so
		}
		return w.folder(sub, at, depth+1)
	case unix.S_IFLNK:
		w.leave(at, "a link")
	default:
		w.leave(at, "a device, pipe or socket")
	}
	return nil
}

// open opens one regular file below the root for reading. A pipe that took its
// place meanwhile does not block.
func (s *Side) open(at string) (f *os.File, err error) {
	err = s.as(func() error {
		f, err = openAt(s.Root, at, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		st, err := f.Stat()
		if err == nil && !st.Mode().IsRegular() {
			err = errors.New("it is no regular file any more")
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", at, err)
	}
	return f, nil
}

// put writes one file below the root. It replaces a regular file or a link,
// never a folder, and follows nothing.
func (s *Side) put(at string, from io.Reader, executable bool) error {
	err := s.as(func() error {
		dir, err := s.folderFor(path.Dir(at))
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		return s.write(dir, path.Base(at), from, executable)
	})
	if err != nil {
		return fmt.Errorf("write %q: %w", at, err)
	}
	return nil
}

func (s *Side) write(dir *os.File, name string, from io.Reader, executable bool) error {
	if len(name) > maxNameSize {
		return errors.New("the name is too long")
	}
	fd, err := descriptor(dir)
	if err != nil {
		return err
	}
	tmp := ".bulkhead-" + strings.ToLower(rand.Text())
	f, err := openAt(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(from, MaxFile+1))
	if err == nil && n > MaxFile {
		err = fmt.Errorf("it grew beyond %d MiB", MaxFile>>20)
	}
	if err == nil && s.Owner != nil {
		err = f.Chown(int(*s.Owner), int(*s.Owner))
	}
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = unix.Renameat(fd, tmp, fd, name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(fd, tmp, 0))
	}
	return nil
}

// folderFor opens the folder at, and makes what is missing on the way.
func (s *Side) folderFor(at string) (*os.File, error) {
	dir, err := openAt(s.Root, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil || at == "." {
		return dir, err
	}
	for part := range strings.SplitSeq(at, "/") {
		fd, err := descriptor(dir)
		if err != nil {
			return nil, errors.Join(err, dir.Close())
		}
		made := unix.Mkdirat(fd, part, 0o755)
		if made != nil && !errors.Is(made, unix.EEXIST) {
			return nil, errors.Join(made, dir.Close())
		}
		next, err := openAt(dir, part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		_ = dir.Close()
		if err != nil {
			return nil, fmt.Errorf("%s is not a folder: %w", part, err)
		}
		if made == nil && s.Owner != nil {
			if err := next.Chown(int(*s.Owner), int(*s.Owner)); err != nil {
				return nil, errors.Join(err, next.Close())
			}
		}
		dir = next
	}
	return dir, nil
}

// remove deletes one file below the root.
func (s *Side) remove(at string) error {
	return s.as(func() error {
		dir, err := openAt(s.Root, path.Dir(at), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("remove %q: %w", at, err)
		}
		defer func() { _ = dir.Close() }()
		fd, err := descriptor(dir)
		if err == nil {
			err = unix.Unlinkat(fd, path.Base(at), 0)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %q: %w", at, err)
		}
		return nil
	})
}

func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := descriptor(dir)
	if err != nil {
		return nil, err
	}
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve} // #nosec G115 -- flags are positive
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	got, err := unix.Openat2(fd, name, how)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(got), name), nil // #nosec G115 -- a descriptor
}

func descriptor(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := -1
	err = raw.Control(func(fd uintptr) { n = int(fd) }) // #nosec G115 -- a descriptor
	return n, err
}
