package fs

import (
	"errors"
	"fmt"
	"strings"

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

// look gives what a name in a folder is, without following or opening it.
func look(dir int, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	return st, again(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
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
