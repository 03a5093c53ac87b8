package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// Limits bound one import.
type Limits struct {
	Entries int   // of the tar
	Bytes   int64 // of all files
	Path    int   // length of one path or link target; the kernel's own is 4096
}

// DefaultLimits are generous: an agent framework with a browser has 100,000
// files and 2 GB.
func DefaultLimits() Limits { return Limits{Entries: 2_000_000, Bytes: 32 << 30, Path: 4096} }

// Refused says which entry ended an import, and why.
type Refused struct {
	Entry string
	Why   string
}

func (r *Refused) Error() string {
	return fmt.Sprintf("image: entry %q refused: %s", r.Entry, r.Why)
}

// Counts is what an import took and what it took away.
type Counts struct {
	Entries  int   `json:"entries"`
	Bytes    int64 `json:"bytes"`
	Setuid   int   `json:"setuidStripped"` // setuid or setgid bits
	Xattrs   int   `json:"xattrsStripped"` // files with extended attributes, capabilities among them
	Writable int   `json:"writableStripped"`
}

// unpack writes a tar below root, see the package comment for the rules. root
// is a new folder that only root can reach.
func unpack(root *os.Root, in io.Reader, limits Limits) (Counts, error) {
	u := &unpacker{root: root, limits: limits}
	err := u.tar(in)
	return u.counts, err
}

// Unpack is how an import writes a tar below root; the build of a Containerfile
// lays its base and its files by the same rules, without privileges.
func Unpack(root *os.Root, in io.Reader, limits Limits) error {
	_, err := unpack(root, in, limits)
	return err
}

type unpacker struct {
	root    *os.Root
	limits  Limits
	counts  Counts
	layered bool // one of several tars: what lies below may be a folder that is not empty
}

func (u *unpacker) tar(in io.Reader) error {
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("image: not a tar: %w", err)
		}
		if u.layered && isWhiteout(h.Name) {
			continue // was carried out before the layer's own files came
		}
		if err := u.entry(h, r); err != nil {
			return err
		}
	}
}

func (u *unpacker) entry(h *tar.Header, body io.Reader) error {
	refuse := func(format string, a ...any) error {
		return &Refused{Entry: h.Name, Why: fmt.Sprintf(format, a...)}
	}
	if u.counts.Entries++; u.counts.Entries > u.limits.Entries {
		return refuse("more than %d entries", u.limits.Entries)
	}
	name, err := u.cleanName(h.Name)
	if err != nil {
		return refuse("%v", err)
	}
	if len(h.Linkname) > u.limits.Path {
		return refuse("link target longer than %d bytes", u.limits.Path)
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") || strings.HasPrefix(key, "LIBARCHIVE.xattr.") {
			u.counts.Xattrs++
			break
		}
	}
	if h.Mode&0o6000 != 0 {
		u.counts.Setuid++
	}
	if h.Mode&0o022 != 0 && h.Typeflag != tar.TypeSymlink {
		u.counts.Writable++
	}
	mode := fs.FileMode(h.Mode & 0o755) // #nosec G115 -- nine bits

	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil // comments of git and others; no file
	case tar.TypeDir:
		err = u.dir(name, mode)
	case tar.TypeReg:
		err = u.file(name, mode, h, body)
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return refuse("a link to nothing")
		}
		if err = u.clear(name); err == nil {
			err = u.root.Symlink(h.Linkname, name)
		}
	case tar.TypeLink:
		var target string
		if target, err = u.cleanName(h.Linkname); err != nil {
			return refuse("hard link: %v", err)
		}
		err = u.hardLink(name, target)
	case tar.TypeChar, tar.TypeBlock:
		return refuse("a device: containers get their own /dev")
	case tar.TypeFifo:
		return refuse("a FIFO")
	default:
		return refuse("type %q is not a file, folder or link", h.Typeflag)
	}
	if err != nil {
		var r *Refused
		if errors.As(err, &r) {
			return err
		}
		return &Refused{Entry: h.Name, Why: err.Error()}
	}
	return nil
}

// cleanName gives an entry's path below the root.
func (u *unpacker) cleanName(name string) (string, error) {
	if len(name) > u.limits.Path {
		return "", fmt.Errorf("path longer than %d bytes", u.limits.Path)
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("a NUL in the path")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", errors.New(`".." in the path`)
		case strings.HasPrefix(part, whiteout):
			return "", errors.New("a layer's whiteout: export a flat tree (podman export), or pull the image")
		}
	}
	if clean := strings.TrimPrefix(path.Clean("/"+name), "/"); clean != "" {
		return clean, nil
	}
	return ".", nil
}

// clear makes room for name: its parents are there, it is not.
func (u *unpacker) clear(name string) error {
	if name == "." {
		return errors.New("the root itself must be a folder")
	}
	if dir := path.Dir(name); dir != "." {
		if err := u.parents(dir); err != nil {
			return err
		}
	}
	remove := u.root.Remove
	if u.layered {
		remove = u.root.RemoveAll
	}
	if err := remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// parents makes the folders that a tar left out. A link on the way is
// followed only inside of root, by os.Root; /bin -> usr/bin is legitimate.
func (u *unpacker) parents(dir string) error {
	info, err := u.root.Stat(dir)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.root.MkdirAll(dir, 0o755)
}

func (u *unpacker) dir(name string, mode fs.FileMode) error {
	mode |= 0o700 // root must be able to remove it again, capabilities or not
	if name != "." {
		if err := u.parents(path.Dir(name)); err != nil {
			return err
		}
		info, err := u.root.Stat(name) // a link to a folder stays a link
		if err != nil || !info.IsDir() {
			if err := u.clear(name); err != nil {
				return err
			}
			if err := u.root.Mkdir(name, 0o755); err != nil {
				return err
			}
		}
	}
	return u.root.Chmod(name, mode)
}

func (u *unpacker) file(name string, mode fs.FileMode, h *tar.Header, body io.Reader) error {
	if h.Size < 0 || u.counts.Bytes+h.Size > u.limits.Bytes {
		return fmt.Errorf("the image has more than %d bytes", u.limits.Bytes)
	}
	u.counts.Bytes += h.Size
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err != nil {
		return err
	}
	// Times matter to Python's caches; a wild one is not worth a failure.
	when := h.ModTime
	if when.Before(epoch) || when.After(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)) {
		when = epoch
	}
	return u.root.Chtimes(name, when, when)
}

// hardLink links name to a regular file that came before it.
func (u *unpacker) hardLink(name, target string) error {
	info, err := u.root.Lstat(target)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("hard link to %s, which is not a regular file", target)
	}
	if name == target {
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.root.Link(target, name)
}
