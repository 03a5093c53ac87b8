package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Prefixes of folders in the store that are no images: being written, and
// replaced or removed but perhaps still mounted.
const (
	importing = ".import-"
	retired   = ".retired-"
)

// ErrInUse is returned by Remove for an image from which something runs.
var ErrInUse = errors.New("image is in use")

// Info is an image's image.json.
type Info struct {
	SchemaVersion int       `json:"schemaVersion"`
	Name          string    `json:"name"`
	Digest        string    `json:"digest"`
	Source        string    `json:"source"` // "recipe sha256:…" or the tar's name
	Imported      time.Time `json:"imported"`
	Counts        Counts    `json:"counts"`
}

// Store is the image store of a host. Only root writes it; one writer at a
// time holds its lock, readers need none.
type Store struct {
	Dir    string
	Limits Limits
}

// NewStore is the store at dir with default limits.
func NewStore(dir string) *Store { return &Store{Dir: dir, Limits: DefaultLimits()} }

// ErrEmpty is wrapped when what is imported holds nothing: nothing could run from it.
var ErrEmpty = errors.New("image: it holds no files")

// Import reads a tar as the image name, replacing one of that name. When it
// fails the store is as before.
func (s *Store) Import(name, source string, in io.Reader) (*Info, error) {
	return s.take(name, source, func(root *os.Root) (Counts, error) { return unpack(root, in, s.Limits) })
}

// ImportLayers is Import for layers that [WriteLayer] wrote.
func (s *Store) ImportLayers(name, source string, in io.Reader) (*Info, error) {
	return s.take(name, source, func(root *os.Root) (Counts, error) { return unpackLayers(root, in, s.Limits) })
}

func (s *Store) take(name, source string, unpack func(*os.Root) (Counts, error)) (info *Info, err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.sweep()
	part, err := os.MkdirTemp(s.Dir, importing)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
	}()
	info = &Info{SchemaVersion: 1, Name: name, Source: source, Imported: time.Now().UTC().Truncate(time.Second)}
	if err := s.fill(part, info, unpack); err != nil {
		return nil, err
	}
	return info, s.place(part, name)
}

// fill unpacks into a new folder.
func (s *Store) fill(part string, info *Info, unpack func(*os.Root) (Counts, error)) error {
	tree := filepath.Join(part, "rootfs")
	if err := os.Mkdir(tree, 0o755); err != nil { // #nosec G301 -- the image's "/"
		return fmt.Errorf("image: %w", err)
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer func() { _ = root.Close() }()
	if info.Counts, err = unpack(root); err != nil {
		return err
	}
	if empty, err := isEmpty(root); err != nil || empty {
		return cmp.Or(err, ErrEmpty)
	}
	if err := mountPoints(root); err != nil {
		return err
	}
	if err := root.Chmod(".", 0o755); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if info.Digest, err = treeDigest(root); err != nil {
		return err
	}
	text, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := os.WriteFile(filepath.Join(part, "image.json"), append(text, '\n'), 0o644); err != nil { // #nosec G306 -- for every reader
		return fmt.Errorf("image: %w", err)
	}
	// One flush of the file system instead of one per file: a crash after the
	// rename must not leave an image of empty files.
	f, err := os.Open(part) // #nosec G304 -- our own folder
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := errors.Join(unix.Syncfs(int(f.Fd())), f.Close()); err != nil {
		return fmt.Errorf("image: flush: %w", err)
	}
	return nil
}

// place puts a finished folder where readers look.
func (s *Store) place(part, name string) error {
	if err := os.Chmod(part, 0o755); err != nil { // #nosec G302 -- read by every agent's launcher
		return fmt.Errorf("image: %w", err)
	}
	final := filepath.Join(s.Dir, name)
	err := unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, final, unix.RENAME_NOREPLACE)
	if err == nil {
		return nil
	}
	if !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("image: place %s: %w", name, err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, final, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("image: replace %s: %w", name, err)
	}
	return s.retire(part) // now the old one
}

// retire takes a folder out of sight, and off the disk unless it is mounted.
func (s *Store) retire(dir string) error {
	old, err := os.MkdirTemp(s.Dir, retired)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := os.Rename(dir, filepath.Join(old, "image")); err != nil {
		return fmt.Errorf("image: retire: %w", err)
	}
	s.sweep()
	return nil
}

// isEmpty says whether nothing at all was unpacked: a tar of "./" alone has an
// entry, and no files either.
func isEmpty(root *os.Root) (bool, error) {
	f, err := root.Open(".")
	if err != nil {
		return false, fmt.Errorf("image: %w", err)
	}
	defer func() { _ = f.Close() }()
	_, err = f.ReadDir(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// List gives the images of the store, by name.
func (s *Store) List() ([]Info, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	var all []Info
	for _, e := range entries {
		if !e.IsDir() || CheckName(e.Name()) != nil {
			continue
		}
		info, err := s.Get(e.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, *info)
	}
	return all, nil
}

// Get gives one image; the error is fs.ErrNotExist when there is none.
func (s *Store) Get(name string) (*Info, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(s.Dir, name, "image.json")) // #nosec G304 -- a checked name
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", name, err)
	}
	var info Info
	if err := json.Unmarshal(text, &info); err != nil {
		return nil, fmt.Errorf("image %s: image.json: %w", name, err)
	}
	return &info, nil
}

// Remove removes an image that nothing runs from.
func (s *Store) Remove(name string) error {
	if _, err := s.Get(name); err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(s.Dir, name)
	used, err := mounted(dir)
	if err != nil {
		return err
	}
	if used {
		return fmt.Errorf("image %s: %w: stop the agents that run from it", name, ErrInUse)
	}
	return s.retire(dir)
}

// lock makes the store and takes its lock; a second writer is told, not hung.
func (s *Store) lock() (func(), error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("image: the store belongs to root: run it with sudo")
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil { // #nosec G301 -- read by every agent's launcher
		return nil, fmt.Errorf("image: store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(s.Dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600) // #nosec G304 -- the store
	if err != nil {
		return nil, fmt.Errorf("image: store: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("image: another import or removal is at work in %s: wait for it: %w", s.Dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// sweep removes interrupted imports, and retired images that nothing has
// mounted any more. The lock is held, so no import is at work.
func (s *Store) sweep() {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(s.Dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), importing):
		case strings.HasPrefix(e.Name(), retired):
			if used, err := mounted(dir); err != nil || used {
				continue
			}
		default:
			continue
		}
		_ = os.RemoveAll(dir) // the next sweep gets what this one could not
	}
}

// mounted says whether any process has dir, or something below it, mounted.
// The kernel shows the present name of a mount's root, also after a rename.
func mounted(dir string) (bool, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, fmt.Errorf("image: %w", err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return false, fmt.Errorf("image: %w", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file) // #nosec G304 -- proc
		if err != nil {
			continue // ended
		}
		if slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool { return mountOf(line, dir) }) {
			return true, nil
		}
	}
	return false, nil
}

// mountOf says whether a mountinfo line mounts dir or something below it. The
// root field is relative to its file system, which may itself be mounted
// below "/": so compare by the tail.
func mountOf(line, dir string) bool {
	f := strings.Fields(line)
	if len(f) < 5 || f[3] == "/" {
		return false
	}
	tail := filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir)) // images/NAME
	return strings.Contains(f[3]+"/", "/"+tail+"/")
}
