package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/tool"
)

// Bounds that are not the agent's to choose.
const (
	MaxFile    = 100 << 20 // bytes of one file, by stream
	MaxInline  = 4 << 20   // bytes of one file within JSON
	MaxEntries = 10_000    // names in one folder
	MaxWrites  = 8         // files being written at once; more wait
	MaxSpare   = MaxInline // bytes of files being written, above the budget, while what they replace is there
)

// Config is what files are kept with.
type Config struct {
	// Dir is the folder that this gateway alone uses; see the package comment.
	// Store does not close it.
	Dir *os.Root
	// Budget is shared with whatever else stores for the agent.
	Budget *storage.Budget
	Log    *slog.Logger // nil: nothing is logged
}

// Store is an agent's files. Its methods may be called concurrently.
type Store struct {
	root, tmp int // descriptors of the folders
	dev       uint64
	xattrs    bool
	budget    *storage.Budget
	log       *slog.Logger
	writes    chan struct{}
	spare     *semaphore.Weighted // [MaxSpare]

	// mu is held while names change, so that what is counted and what is there
	// stay the same.
	mu sync.Mutex
}

// Open makes the folders where they are missing, removes what was being
// written when the last gateway ended, and counts what is there.
func Open(cfg Config) (_ *Store, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{root: -1, tmp: -1, budget: cfg.Budget, log: cfg.Log, writes: make(chan struct{}, MaxWrites), spare: semaphore.NewWeighted(MaxSpare)}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if s.root, err = own(cfg.Dir, "files"); err != nil {
		return nil, err
	}
	if s.tmp, err = own(cfg.Dir, "tmp"); err != nil {
		return nil, err
	}
	if err := unix.Flock(s.tmp, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("%s is served by another gateway already: %w", cfg.Dir.Name(), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.root, &st); err != nil {
		return nil, fmt.Errorf("stat %s/files: %w", cfg.Dir.Name(), err)
	}
	s.dev = st.Dev
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("remove what was being written from %s/tmp: %w", cfg.Dir.Name(), err)
	}
	s.xattrs = s.keepsTypes()
	bytes, files, err := s.count(s.root)
	if err != nil {
		return nil, fmt.Errorf("count %s/files: %w", cfg.Dir.Name(), err)
	}
	s.budget.Count(bytes, files)
	return s, nil
}

// own makes a folder and opens it; a link in its place is refused.
func own(dir *os.Root, name string) (int, error) {
	if err := dir.Mkdir(name, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return -1, fmt.Errorf("make a folder for files: %w", err)
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, fmt.Errorf("open a folder for files: %w", err)
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, fmt.Errorf("keep %s open: %w", f.Name(), err)
	}
	return fd, nil
}

// Close ends the use of the folder. Writers that are open must be ended before.
func (s *Store) Close() error {
	var errs []error
	for _, fd := range []*int{&s.root, &s.tmp} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// sweep removes temporary files. They are not counted: what is written is
// taken from the budget in memory only.
func (s *Store) sweep() error {
	names, err := entries(s.tmp, -1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := unix.Unlinkat(s.tmp, n, 0); err != nil {
			return fmt.Errorf("%q: %w", n, err)
		}
	}
	return nil
}

// count walks a folder. What is no file or folder takes an inode too.
func (s *Store) count(dir int) (bytes, files int64, err error) {
	names, err := entries(dir, -1)
	if err != nil {
		return 0, 0, err
	}
	for _, n := range names {
		st, err := look(dir, n)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("%q: %w", n, err)
		}
		files++
		switch s.kindOf(&st) {
		case file:
			bytes += st.Size
		case directory:
			sub, err := beneath(dir, []string{n}, unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				return 0, 0, fmt.Errorf("%q: %w", n, err)
			}
			b, f, err := s.count(sub)
			_ = unix.Close(sub)
			if err != nil {
				return 0, 0, err
			}
			bytes, files = bytes+b, files+f
		case other:
			s.log.Warn("among an agent's files there is what it cannot have made; it is never touched", "name", n, "mode", st.Mode, "links", st.Nlink)
		}
	}
	return bytes, files, nil
}

// entries reads the names in a folder; limit below 0: all of them.
func entries(dir, limit int) ([]string, error) {
	// A descriptor of its own: that of dir has one position for all who read.
	fd, err := beneath(dir, nil, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "folder") // #nosec G115 -- a descriptor
	defer f.Close()
	names, err := f.Readdirnames(limit)
	if limit > 0 && len(names) == 0 && err != nil {
		return nil, nil // io.EOF: it is empty
	}
	return names, err
}

// refused tells what the kernel said about a path.
func (s *Store) refused(ctx context.Context, what string, p Path, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return tool.Refuse(deny.ToolMissing, what, fmt.Sprintf("there is no %q", p), "fs_list shows what is there")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EMLINK):
		return s.foreign(ctx, what, p)
	case errors.Is(err, unix.ENOTDIR):
		return tool.Refuse(deny.ToolConflict, what, fmt.Sprintf("a part of %q is a file, not a folder", p), "use another name, or delete that file first")
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EISDIR):
		return tool.Refuse(deny.ToolConflict, what, fmt.Sprintf("%q, or a folder above it, was changed by somebody else meanwhile", p), "try again")
	case errors.Is(err, unix.ENOTEMPTY):
		return tool.Refuse(deny.ToolConflict, what, fmt.Sprintf("the folder %q is not empty", p), `delete what is in it first, or give "recursive": true`)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		s.log.ErrorContext(ctx, "an agent's file could not be written: the disk is full", "error", err)
		r := tool.Refuse(deny.ToolUnavailable, what, "the disk that holds this agent's files is full", "tell the operator; or delete files that are not needed")
		r.RetryAfter = 60
		return r
	}
	return fmt.Errorf("%s %q: %w", what, p, err)
}

// foreign refuses what no tool can have made: somebody who can write to the
// gateway's folder put it there.
func (s *Store) foreign(ctx context.Context, what string, p Path) error {
	s.log.WarnContext(ctx, "a link, device or the like is in the way of an agent's file", "tool", what, "path", p.String())
	return tool.Refuse(deny.ToolUnsafe, what, fmt.Sprintf("%q is, or leads through, a link, device, pipe or socket, or a file with a second name", p),
		"use another path; the operator can remove it")
}

func isFolder(what string, p Path) error {
	return tool.Refuse(deny.ToolConflict, what, fmt.Sprintf("%q is a folder", p), "name a file in it")
}
