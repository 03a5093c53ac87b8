package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exposedKinds are attempts at what the kernel and the host show as files.
func exposedKinds() map[string]kind {
	return map[string]kind{
		"open.read":  {do: openToRead},
		"open.write": {do: openToWrite},
		"dev.nodes":  {do: findDevices},
	}
}

// masked is the refusal of a file or folder over which nothing was mounted.
const masked = refused("masked")

func pointerTo(p *uint32) uintptr { return uintptr(unsafe.Pointer(p)) } // #nosec G103 -- a system call's argument

// openToRead opens each file or folder and looks whether something is in it.
func openToRead(t *trial) error {
	for _, p := range t.Paths {
		if t.step("open "+p, openAndLook(p)) {
			t.saw("%s can be read", p)
			return nil
		}
	}
	return nil
}

func openAndLook(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path) // #nosec G115 -- a descriptor
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if names, err := f.Readdirnames(1); len(names) == 0 && (err == nil || errors.Is(err, io.EOF)) {
			return masked
		}
	case unix.S_IFCHR:
		if isNull(&st) {
			return masked
		}
	}
	return nil
}

func isNull(st *unix.Stat_t) bool { return st.Rdev == unix.Mkdev(1, 3) }

// openToWrite opens each file for writing, as id 0 where that is to be had, and
// writes nothing.
func openToWrite(t *trial) error {
	_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0) // of this thread, which is thrown away
	for _, p := range t.Paths {
		if t.step("open "+p+" for writing", openAndClose(p)) {
			t.saw("%s can be written", p)
			return nil
		}
	}
	return nil
}

func openAndClose(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && isNull(&st) {
		return masked
	}
	return nil
}

// plainDevices are the nodes that every container has: they hold nothing of
// anybody's.
var plainDevices = []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}

// findDevices looks for nodes of other devices in /dev.
func findDevices(t *trial) error {
	found := ""
	err := filepath.WalkDir("/dev", func(p string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeDevice == 0 || slices.Contains(plainDevices, d.Name()) || filepath.Dir(p) == "/dev/pts" {
			return nil //nolint:nilerr // what cannot be looked into shows nothing
		}
		found = p
		return filepath.SkipAll
	})
	if err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	if found == "" {
		t.step("look for other devices in /dev", absent)
		return nil
	}
	t.step("look for other devices in /dev", nil)
	t.saw("%s is there", found)
	return nil
}
