package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/lookpath"
)

// blockSize is that of every disk: the page size of the smallest machines, and
// ext4's own default for all but tiny ones.
const blockSize = 4096

// lostFound is the folder that mkfs.ext4 makes for e2fsck.
const lostFound = "lost+found"

// toolPath is where Debian keeps mkfs.ext4 and cp.
const toolPath = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// labelPrefix marks a label as ours; what follows is the number of inodes.
const labelPrefix = "bh-"

// maxInodes is what a label of 16 bytes can say, and ext4 can count.
const maxInodes = 1<<32 - 1

// rounded is the size that an image of size s gets.
func (s Size) rounded() Size { return Size{Bytes: s.Bytes &^ (blockSize - 1), Inodes: s.Inodes} }

func openImage(path string, flags int) (*os.File, error) {
	parent, err := tree.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }()
	fd, err := unix.Openat(parent.FD(), filepath.Base(path), flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("disk: open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil // #nosec G115 -- a descriptor
}

// makeImage makes an empty file system in a new file, all of whose bytes are
// reserved.
func (d Disk) makeImage(ctx context.Context, s Size) (err error) {
	s, path := s.rounded(), d.Image
	if s.Inodes <= 0 || s.Inodes > maxInodes {
		return fmt.Errorf("disk: %d inodes: name 1 to %d", s.Inodes, int64(maxInodes))
	}
	f, err := openImage(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, tree.Remove(path))
		}
	}()
	if err := noCopyOnWrite(f); err != nil {
		return err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, s.Bytes); err != nil { // #nosec G115 -- a descriptor
		return fmt.Errorf("disk: reserve %d MiB for %s: %w; free some space, or write a smaller limits.disk", s.Bytes>>20, path, err)
	}
	// Reserved bytes read as zeros, so nothing needs to be written to the tables.
	err = d.run(ctx, "mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(blockSize), "-m", "0", "-N", strconv.FormatInt(s.Inodes, 10),
		"-L", labelPrefix+strconv.FormatInt(s.Inodes, 36), "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0", path)
	if err != nil {
		return fmt.Errorf("disk: make %s: %w", path, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("disk: sync %s: %w", path, err)
	}
	return nil
}

// noCOW is FS_NOCOW_FL (linux/fs.h).
const noCOW = 0x00800000

// noCopyOnWrite keeps btrfs from writing beside what is reserved: it would take
// room that nobody reserved.
func noCopyOnWrite(f *os.File) error {
	var st unix.Statfs_t
	fd := int(f.Fd()) // #nosec G115 -- a descriptor
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("disk: statfs %s: %w", f.Name(), err)
	}
	if st.Type != unix.BTRFS_SUPER_MAGIC {
		return nil
	}
	if err := unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, noCOW); err != nil {
		return fmt.Errorf("disk: switch copy-on-write off for %s: %w", f.Name(), err)
	}
	return nil
}

// Where things stand in an ext4 superblock (kernel:
// Documentation/filesystems/ext4/super.rst).
const (
	superOffset = 1024
	magicAt     = 0x38
	magic       = 0xEF53
	labelAt     = 0x78
	labelSize   = 16
)

// sizeOf reads a size back from an image.
func sizeOf(f *os.File) (Size, error) {
	st, err := f.Stat()
	if err != nil {
		return Size{}, err
	}
	super := make([]byte, labelAt+labelSize)
	if _, err := f.ReadAt(super, superOffset); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is too short for a file system")
		}
		return Size{}, err
	}
	inodes, err := parseSuper(super)
	if err != nil {
		return Size{}, err
	}
	return Size{Bytes: st.Size(), Inodes: inodes}, nil
}

// parseSuper reads how many inodes were asked for from the start of a superblock.
func parseSuper(super []byte) (int64, error) {
	if len(super) < labelAt+labelSize || binary.LittleEndian.Uint16(super[magicAt:]) != magic {
		return 0, errors.New("it is no ext4 file system")
	}
	label := string(bytes.TrimRight(super[labelAt:labelAt+labelSize], "\x00"))
	text, ok := strings.CutPrefix(label, labelPrefix)
	if !ok {
		return 0, fmt.Errorf("its label %q is not ours", label)
	}
	n, err := strconv.ParseInt(text, 36, 64)
	if err != nil || n <= 0 || n > maxInodes {
		return 0, fmt.Errorf("its label %q does not say how many inodes were asked for", label)
	}
	return n, nil
}

// run runs a tool of the host with nothing of our environment.
func (d Disk) run(ctx context.Context, name string, args ...string) error {
	env := []string{toolPath, "LC_ALL=C"}
	path, err := lookpath.Find(name, env)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	c := exec.CommandContext(ctx, path, args...) // #nosec G204 -- mkfs.ext4 and cp, with our own paths
	c.Env, c.Dir, c.Stdout, c.Stderr = env, "/", &out, &out
	if d.Held != nil {
		c.ExtraFiles = []*os.File{d.Held}
	}
	// The signal comes with the end of the starting thread (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); err != nil {
		const most = 1000
		return fmt.Errorf("%s: %w: %.*s", name, err, most, strings.TrimSpace(out.String()))
	}
	return nil
}

// copyTree copies what lies at the point into another folder, with owners, modes,
// times, links and attributes. Links are copied as links, other file systems
// are not entered. Nothing of an agent runs on either side.
func (d Disk) copyTree(ctx context.Context, to string) error {
	from := d.Point
	err := d.run(ctx, "cp", "--archive", "--one-file-system", "--no-target-directory", from, to)
	if err == nil {
		return syncDisk(to)
	}
	if strings.Contains(err.Error(), "No space left on device") {
		return fmt.Errorf("disk: what lies in %s %w into the size asked for; remove some of it first, or ask for more: %w", from, ErrTooSmall, err)
	}
	return fmt.Errorf("disk: copy %s: %w", from, err)
}

func syncDisk(path string) error {
	f, err := os.Open(path) // #nosec G304 -- root's own folder
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil { // #nosec G115 -- a descriptor
		return fmt.Errorf("disk: sync %s: %w", path, err)
	}
	return nil
}
