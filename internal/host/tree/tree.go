// Package tree is root among files that agents own.
//
// The rule: root opens a path inside an agent's tree only through openat2 with
// RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS and
// RESOLVE_NO_XDEV, and acts on the descriptor. Folders that root makes are
// made in a parent that is held open and owned by root. So a link that an
// agent planted leads nowhere.
package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open folder.
type Dir struct {
	f    *os.File
	path string // for messages only
}

const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// Open opens an absolute path whose every component is a real folder (no
// symbolic link anywhere), owned by root, and not writable by group or others.
// A sticky folder such as /tmp is refused too: anybody can put things there.
func Open(path string) (*Dir, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("tree: %q is not a clean absolute path", path)
	}
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("tree: open /: %w", err)
	}
	d := &Dir{f: os.NewFile(uintptr(fd), "/"), path: "/"} // #nosec G115 -- a descriptor
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if part == "" {
			continue
		}
		next, err := d.step(part)
		_ = d.Close()
		if err != nil {
			return nil, err
		}
		d = next
	}
	return d, nil
}

// Check says whether path can be a mount's source: it exists, no component is
// a link, and every parent belongs to root and is writable by root alone.
func Check(path string) error {
	parent, err := Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	var st unix.Stat_t
	err = unix.Fstatat(int(parent.f.Fd()), filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("tree: %s does not exist", path)
	case err != nil:
		return fmt.Errorf("tree: %s: %w", path, err)
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("tree: %s is a symbolic link: name the place it leads to", path)
	}
	return nil
}

func (d *Dir) step(name string) (*Dir, error) {
	p := filepath.Join(d.path, name)
	// Mount points on the way are the operator's own doing: no RESOLVE_NO_XDEV here.
	fd, err := unix.Openat2(int(d.f.Fd()), name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolve &^ unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("tree: open %s: %w", p, err)
	}
	n := &Dir{f: os.NewFile(uintptr(fd), p), path: p} // #nosec G115 -- a descriptor
	if err := n.rootOwned(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (d *Dir) rootOwned() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.f.Fd()), &st); err != nil {
		return fmt.Errorf("tree: stat %s: %w", d.path, err)
	}
	if st.Mode&unix.S_ISVTX != 0 && st.Mode&0o022 != 0 { // meant to be everybody's, like /tmp: closing it would break the host
		return fmt.Errorf("tree: %s has mode %04o, everybody may write there: use a place below folders that root alone can write", d.path, st.Mode&0o7777)
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("tree: %s is owned by id %d with mode %04o: it must belong to root and be writable by root alone (chown root %s && chmod go-w %s)", d.path, st.Uid, st.Mode&0o7777, d.path, d.path)
	}
	return nil
}

// Close closes the folder.
func (d *Dir) Close() error { return d.f.Close() }

// Path is the folder's path, for messages.
func (d *Dir) Path() string { return d.path }

// Mkdir makes the folder name in d if it is not there, and sets owner and
// mode. When it is there it must be a folder, not a link; root's own folders
// are corrected, an agent's own (uid not 0) get their top set again.
func (d *Dir) Mkdir(name string, uid, gid uint32, mode uint32) error {
	p := filepath.Join(d.path, name)
	if err := oneName(name); err != nil {
		return err
	}
	dirfd := int(d.f.Fd())
	if err := unix.Mkdirat(dirfd, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("tree: make %s: %w", p, err)
	}
	fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolve})
	if err != nil {
		return fmt.Errorf("tree: open %s: %w (something that is not a folder stands there)", p, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Fchown(fd, int(uid), int(gid)); err != nil {
		return fmt.Errorf("tree: give %s to %d: %w", p, uid, err)
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return fmt.Errorf("tree: set mode of %s: %w", p, err)
	}
	return nil
}

func oneName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("tree: %q is not the name of one entry", name)
	}
	return nil
}

// MkdirAll makes path and its parents as root's own folders with mode 0755,
// from the deepest parent that exists. Every component is checked as in Open.
func MkdirAll(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("tree: %q is not a clean absolute path", path)
	}
	d, err := Open("/")
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		next, err := d.step(part)
		if errors.Is(err, unix.ENOENT) {
			if err := d.Mkdir(part, 0, 0, 0o755); err != nil {
				return err
			}
			next, err = d.step(part)
		}
		if err != nil {
			return err
		}
		_ = d.Close()
		d = next
	}
	return nil
}

// Entry is one folder to make below a parent.
type Entry struct {
	Path     string // absolute; its parent must exist and belong to root
	UID, GID uint32
	Mode     uint32
}

// MakeAll makes entries in order.
func MakeAll(entries ...Entry) error {
	for _, e := range entries {
		parent, err := Open(filepath.Dir(e.Path))
		if err != nil {
			return err
		}
		err = parent.Mkdir(filepath.Base(e.Path), e.UID, e.GID, e.Mode)
		if err := errors.Join(err, parent.Close()); err != nil {
			return err
		}
	}
	return nil
}

// FD is the folder's descriptor, for calls that act on what lies in it. It is
// good until Close.
func (d *Dir) FD() int { return int(d.f.Fd()) } // #nosec G115 -- a descriptor
