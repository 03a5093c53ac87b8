// Package disk keeps what an agent writes within a fixed number of bytes and
// inodes: a file system of its own, in one file of root's, mounted where the
// agent's data lies. It works on whatever file system the host has, because it
// asks nothing of it but to hold a file (docs/decisions/0040).
//
// # On disk
//
// IMAGE is an ext4 file system in a root-owned file, mode 0600, whose bytes are
// all reserved when it is made: what one agent may write can never be what
// another one's disk lacks. It is mounted at POINT, nosuid and nodev, through a
// loop device that lets go of it by itself when the last mount is gone.
//
// IMAGE.new is one that is being made or copied to; it becomes IMAGE by a
// rename, so that a crash leaves the old one or the new one, whole. How many
// inodes were asked for is the file system's own label, and cannot be parted
// from it.
//
// # What it does not do
//
// It does not say who owns what lies on a disk: its top folder is root's.
// It does not bound how fast an agent writes, nor memory (see internal/cgroup).
package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/tree"
)

// Size is how much a disk holds.
type Size struct {
	Bytes  int64 // of the image, its own tables and journal included
	Inodes int64 // asked for; the kernel rounds them up by a few
}

// Disk is one file system in a file. Both paths are absolute, in one folder
// that belongs to root, and only one process at a time may act on them.
type Disk struct {
	Image string // the file
	Point string // the folder that it is mounted on
	// Held stays open in every tool that works on the disk, which moreover ends
	// with this process. With the warden's lock in it, no tool of a warden that
	// was killed works on a disk beside the next one. nil: nothing is held.
	Held *os.File
}

// ErrTooSmall is wrapped when data does not fit into the size asked for.
var ErrTooSmall = errors.New("does not fit")

// Usage is what the kernel says of a mounted disk.
type Usage struct {
	Bytes, UsedBytes   int64
	Inodes, UsedInodes int64
}

func (d Disk) folder() string { return filepath.Dir(d.Image) }

// side is the disk that is being made beside d.
func (d Disk) side() Disk {
	return Disk{Image: d.Image + ".new", Point: d.Point + ".new", Held: d.Held}
}

// Made says whether the image is there, and of which size.
func (d Disk) Made() (Size, bool, error) {
	f, err := openImage(d.Image, unix.O_RDONLY)
	if errors.Is(err, unix.ENOENT) {
		return Size{}, false, nil
	}
	if err != nil {
		return Size{}, false, err
	}
	defer func() { _ = f.Close() }()
	s, err := sizeOf(f)
	if err != nil {
		return Size{}, false, fmt.Errorf("disk: %s: %w", d.Image, err)
	}
	return s, true, nil
}

// Ensure makes the disk when there is none, and mounts it, from any state that
// a crash may have left. A disk of another size stays as it is: see [Disk.Resize].
// What lies in the folder that it is mounted on is taken over onto a new disk.
func (d Disk) Ensure(ctx context.Context, want Size) error {
	mounted, err := d.Mounted()
	if err != nil || mounted {
		return err
	}
	if err := d.side().Discard(); err != nil {
		return err
	}
	if err := point(d.Point); err != nil {
		return err
	}
	_, made, err := d.Made()
	if err != nil {
		return err
	}
	if !made {
		if err := d.replace(ctx, want); err != nil {
			return err
		}
	}
	// With an image in place, what else lies here was copied onto it already.
	if err := empty(d.Point); err != nil {
		return err
	}
	return d.mount()
}

// Resize gives the disk another size. Nothing may run on it. It copies to a new
// disk, which replaces the old one by a rename: the same way for more, for less
// and for another number of inodes, none of which a crash can leave half done.
// It needs room for both. [ErrTooSmall] says that the data does not fit; the
// disk is then as it was.
func (d Disk) Resize(ctx context.Context, want Size) error {
	if have, made, err := d.Made(); err != nil || made && have == want.rounded() {
		return err
	}
	if err := d.side().Discard(); err != nil {
		return err
	}
	if err := d.replace(ctx, want); err != nil {
		return err
	}
	return d.mount()
}

// replace makes an image of the wanted size with what lies at the point now,
// puts it in the place of the old one and leaves nothing mounted.
func (d Disk) replace(ctx context.Context, want Size) (err error) {
	side := d.side()
	if err := side.makeImage(ctx, want); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, side.Discard())
		}
	}()
	some, err := holds(d.Point)
	if err != nil {
		return err
	}
	if some {
		if err := d.copyTo(ctx, side); err != nil {
			return err
		}
	}
	if err := d.Unmount(); err != nil {
		return err
	}
	parent, err := tree.Open(d.folder())
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	if err := unix.Renameat(parent.FD(), filepath.Base(side.Image), parent.FD(), filepath.Base(d.Image)); err != nil {
		return fmt.Errorf("disk: put %s in place: %w", d.Image, err)
	}
	return syncFolder(d.folder())
}

func (d Disk) copyTo(ctx context.Context, side Disk) error {
	if err := point(side.Point); err != nil {
		return err
	}
	if err := side.mount(); err != nil {
		return err
	}
	if err := d.copyTree(ctx, side.Point); err != nil {
		return err
	}
	if err := side.Unmount(); err != nil {
		return err
	}
	return tree.Remove(side.Point)
}

// Discard removes the disk with everything on it. It is no error when there is none.
func (d Disk) Discard() error {
	if err := d.Unmount(); err != nil {
		return err
	}
	return errors.Join(tree.Remove(d.Point), tree.Remove(d.Image))
}

// Sweep removes what a crash in the middle of a new size left beside the disk.
func (d Disk) Sweep() error { return d.side().Discard() }

// Usage asks the kernel. ok is false when the disk is not mounted.
func (d Disk) Usage() (u Usage, ok bool, err error) {
	mounted, err := d.Mounted()
	if err != nil || !mounted {
		return u, false, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.Point, &st); err != nil {
		return u, false, fmt.Errorf("disk: statfs %s: %w", d.Point, err)
	}
	block := st.Bsize
	used := int64(st.Blocks - st.Bfree) // #nosec G115 -- what a disk holds fits
	u = Usage{
		// As df(1) has it: what the kernel keeps for itself is neither used nor to be had.
		Bytes: (used + int64(st.Bavail)) * block, UsedBytes: used * block, // #nosec G115 -- as above
		Inodes: int64(st.Files), UsedInodes: int64(st.Files - st.Ffree), // #nosec G115 -- as above
	}
	return u, true, nil
}

// point makes the folder that a disk is mounted on.
func point(path string) error { return tree.MakeAll(tree.Entry{Path: path, Mode: 0o711}) }

// empty removes what lies in a folder of root's, by removing the folder.
func empty(path string) error {
	some, err := holds(path)
	if err != nil || !some {
		return err
	}
	if err := tree.Remove(path); err != nil {
		return err
	}
	return point(path)
}

// holds says whether anything but the file system's own folder lies in a folder.
func holds(path string) (bool, error) {
	d, err := tree.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = d.Close() }()
	fd, err := unix.Openat(d.FD(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("disk: open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path) // #nosec G115 -- a descriptor
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return false, fmt.Errorf("disk: list %s: %w", path, err)
	}
	for _, n := range names {
		if n != lostFound {
			return true, nil
		}
	}
	return false, nil
}

func syncFolder(path string) error {
	f, err := os.Open(path) // #nosec G304 -- root's own folder
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("disk: sync %s: %w", path, err)
	}
	return nil
}
