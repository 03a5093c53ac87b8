package containerfile

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// tree writes files below a root as a tar.
type tree struct {
	out  *tar.Writer
	root *os.Root
	skip func(name string) bool
	odd  func(name string, mode fs.FileMode) error // neither file, folder nor link
	seen map[inode]string                          // hard links: the first name
}

type inode struct{ dev, ino uint64 }

func (t *tree) skips(name string) bool { return t.skip != nil && t.skip(name) }

// below adds everything below from; names are relative to it.
func (t *tree) below(from string) error {
	sub, err := t.root.OpenRoot(from)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	return fs.WalkDir(sub.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		if t.skips(path.Join(from, p)) {
			return nil // what is below a folder that is left out, is left out by its own path
		}
		return t.one(sub, p, p)
	})
}

// one adds one entry as the name.
func (t *tree) one(root *os.Root, p, name string) error {
	info, err := root.Lstat(p)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag = tar.TypeDir
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = root.Readlink(p); err != nil {
			return err
		}
	case info.Mode().IsRegular():
		return t.file(root, p, h, info)
	default:
		return t.odd(p, info.Mode())
	}
	return t.out.WriteHeader(h)
}

func (t *tree) file(root *os.Root, p string, h *tar.Header, info fs.FileInfo) error {
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 && t.seen != nil {
		id := inode{st.Dev, st.Ino}
		if first, ok := t.seen[id]; ok {
			h.Typeflag, h.Size, h.Linkname = tar.TypeLink, 0, first
			return t.out.WriteHeader(h)
		}
		t.seen[id] = h.Name
	}
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := t.out.WriteHeader(h); err != nil {
		return errors.Join(err, f.Close())
	}
	_, err = io.CopyN(t.out, f, h.Size)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	return nil
}
