package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// readFiles lists each folder and reads a byte of each file, by its own path
// and through the root of PID 1.
func readFiles(t *trial) error {
	for _, path := range t.Paths {
		for _, p := range []string{path, filepath.Join("/proc/1/root", path)} {
			if t.step("read "+p, readOne(p, t)) {
				return nil
			}
		}
	}
	return nil
}

func readOne(path string, t *trial) error {
	f, err := os.Open(path) // #nosec G304 -- reading what it is told is the attack
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() {
		n, err := f.Read(make([]byte, 1))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		t.saw("read %d byte of %s", n, path)
		return nil
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	t.saw("listed %d entries of %s", len(names), path)
	return nil
}

// writeRoot makes a file in the root and in /etc, and removes it again.
func writeRoot(t *trial) error {
	for _, dir := range []string{"/", "/etc"} {
		p := filepath.Join(dir, t.name())
		fd, err := unix.Open(p, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.ENOENT) && dir != "/" {
			continue // an image without /etc
		}
		if t.step("create "+p, err) {
			t.saw("made %s", p)
			return errors.Join(unix.Close(fd), unix.Unlink(p))
		}
	}
	return nil
}

// openCorePattern opens for writing, without writing, what decides which
// program the kernel starts as root when a process dumps core or a module is
// missing. Only id 0 may, so it tries to become that first.
func openCorePattern(t *trial) error {
	runtime.LockOSThread() // the id is a thread's; the process ends with the attempt
	_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0)
	for _, p := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe"} {
		fd, err := unix.Open(p, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && len(t.steps) > 0 {
			continue // a kernel without modules
		}
		if t.step("open "+p+" for writing", err) {
			t.saw("%s is writable", p)
			return unix.Close(fd)
		}
	}
	return nil
}

// openByHandle opens the root folder by its file handle, the way in which a
// container once walked out of its root (shocker.c, CVE-2014-3519 class).
func openByHandle(t *trial) error {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/", 0)
	if err != nil {
		// Refused one step earlier, or a file system without handles: offer one
		// that is well-formed, so that the call itself is judged.
		h = unix.NewFileHandle(1, make([]byte, 8))
	}
	root, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /: %w", err)
	}
	defer unix.Close(root)
	fd, err := unix.OpenByHandleAt(root, h, unix.O_RDONLY)
	if t.step("open_by_handle_at", err) {
		t.saw("opened / by its handle")
		return unix.Close(fd)
	}
	return nil
}
