package fs

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// resolve is how every path of an agent is opened: the kernel itself refuses
// to leave the root, to follow any link, and to go into another file system.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// beneath opens a path below a folder.
func beneath(dir int, names []string, flags int) (int, error) {
	path := "."
	if len(names) > 0 {
		path = strings.Join(names, "/")
	}
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve} // #nosec G115 -- flags are constants
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(dir, path, how)
		// EAGAIN: something on the way was renamed meanwhile, and the kernel
		// could not tell whether the path stayed below the root.
		if err == nil || tries == 64 || !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// folder opens a folder below the root, for the *at calls.
func (s *Store) folder(p Path) (int, error) {
	return beneath(s.root, p.names, unix.O_RDONLY|unix.O_DIRECTORY)
}

// maxLooks is how often a name is looked at anew whose file changes meanwhile.
const maxLooks = 64

// fresh is how long a change of a file counts as one that may still go on.
const fresh = 2 * time.Second

// look gives what a name in a folder is, without following or opening it.
//
// While the kernel takes one of a file's two names away, the file can be found by
// it for a moment after its count of names was lowered, and looks as if it had the
// one. Reading the folder waits for that, since both take the folder's lock: what
// is the same before and after it, and has changed lately, has its name.
func look(dir int, name string) (unix.Stat_t, error) {
	st, err := lookOnce(dir, name)
	for range maxLooks {
		if err != nil || !changing(&st) {
			return st, err
		}
		var some [1024]byte
		if err := again(func() error { _, err := unix.Getdents(dir, some[:]); return err }); err != nil {
			return st, err
		}
		before := st
		if st, err = lookOnce(dir, name); err == nil && unchanged(&before, &st) {
			return st, nil
		}
	}
	return st, err
}

func lookOnce(dir int, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	return st, again(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
}

// changing says whether a file with one name may be losing another one, or one
// without a name is being removed: it was found by the name that it then lost.
func changing(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink <= 1 && time.Since(time.Unix(st.Ctim.Unix())) < fresh
}

func unchanged(a, b *unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Ctim == b.Ctim && a.Nlink == b.Nlink
}

// kind of a file, as far as agents may have it.
type kind int

const (
	other kind = iota // a link, device, fifo or socket, or a file with a second name: never touched
	file
	directory
)

func (s *Store) kindOf(st *unix.Stat_t) kind {
	switch {
	case st.Dev != s.dev:
		return other
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return directory
	case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1:
		return file
	}
	return other
}

func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// syncFolder has a folder's entries on disk.
func syncFolder(fd int) error {
	if err := again(func() error { return unix.Fsync(fd) }); err != nil {
		return fmt.Errorf("sync a folder: %w", err)
	}
	return nil
}
