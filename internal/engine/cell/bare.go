package cell

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"bulkhead/internal/thread"
)

// Bare is a mount namespace that holds one empty, read-only folder and nothing
// else. Containers' own are copies of it, so that what they cost does not
// depend on what is mounted on the host: a copy of the host's has every
// agent's disks, which have to be copied, looked through and let go again, and
// no other mount on the machine can be made meanwhile. Nor does a copy need
// pivot_root(2), for which the kernel goes through every thread of the machine.
//
// It is safe for concurrent use.
type Bare struct{ ns *os.File }

// MakeBare makes one. The caller must be root in the initial user namespace,
// with a procfs on /proc.
func MakeBare() (*Bare, error) {
	var b *Bare
	var err error
	thread.Run(func() {
		// Before it: no path is in sight after it.
		var self int
		if self, err = unix.Open("/proc/thread-self/ns", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			err = fmt.Errorf("cell: open /proc/thread-self/ns: %w", err)
			return
		}
		defer func() { _ = unix.Close(self) }()
		if err = becomeBare(); err != nil {
			return
		}
		var fd int
		if fd, err = unix.Openat(self, "mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			err = fmt.Errorf("cell: bare mount namespace: %w", err)
			return
		}
		b = &Bare{os.NewFile(uintptr(fd), "mnt")} // #nosec G115 -- a descriptor
	})
	return b, err
}

// TakeBare takes one that was passed on by [Bare.File].
func TakeBare(f *os.File) *Bare { return &Bare{f} }

// File refers to it, for passing it on. It stays the Bare's own.
func (b *Bare) File() *os.File { return b.ns }

// Close lets go of it. Containers have their own.
func (b *Bare) Close() error {
	if err := b.ns.Close(); err != nil {
		return fmt.Errorf("cell: bare mount namespace: %w", err)
	}
	return nil
}

// Enter gives the calling thread (locked, and thrown away afterwards) a copy
// of it; of one that is made for this, when b is nil. No path of the host is in
// sight after it.
func (b *Bare) Enter() error {
	if b == nil {
		return becomeBare()
	}
	// A thread that shares its root and working folder cannot change namespaces.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cell: a root of its own for a thread: %w", err)
	}
	if err := unix.Setns(int(b.ns.Fd()), unix.CLONE_NEWNS); err != nil { // #nosec G115 -- a descriptor
		return fmt.Errorf("cell: enter the bare mount namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cell: mount namespace: %w", err)
	}
	return nil
}

// becomeBare makes the calling thread's a bare one.
func becomeBare() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cell: mount namespace: %w", err)
	}
	// Nothing mounted here may show outside, and nothing from there may come in.
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cell: cut mount propagation: %w", err)
	}
	// Any folder does: this mount namespace is ours and the old tree goes away.
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "size=4k,nr_inodes=2,mode=0555"); err != nil {
		return fmt.Errorf("cell: empty folder: %w", err)
	}
	if err := unix.Chdir("/tmp"); err != nil {
		return fmt.Errorf("cell: enter the empty folder: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cell: pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cell: let go of the host's tree: %w", err)
	}
	return chdirRoot()
}

func chdirRoot() error {
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("cell: enter the root: %w", err)
	}
	return nil
}

// SetRoot puts a detached mount over the root of the calling thread's mount
// namespace, a copy of a bare one, and makes it the thread's root. Inside it is
// as after pivot_root(2): the lower folder is in no path, as the kernel's own
// first root is on every machine, and the thread is not in a chroot (a user
// namespace can be made: the kernel compares with what is mounted on top). What
// gets back to the lower one all the same finds an empty folder.
func SetRoot(root int) error {
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("cell: place the root: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("cell: enter the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("cell: change the root: %w", err)
	}
	return chdirRoot()
}
