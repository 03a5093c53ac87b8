package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// scratch makes a folder of its own to mount on, so that a mount which goes
// through hides nothing.
func scratch() (string, func() error, error) {
	var all error
	for _, in := range []string{"/tmp", "/dev/shm", "/run", "."} {
		dir, err := os.MkdirTemp(in, mark)
		if err == nil {
			return dir, func() error { return os.Remove(dir) }, nil
		}
		all = errors.Join(all, err)
	}
	return "", nil, fmt.Errorf("no writable folder to mount on: %w", all)
}

// mountOn mounts on a scratch folder and undoes it.
func mountOn(t *trial, what string, mount func(dir string) error) error {
	dir, remove, err := scratch()
	if err != nil {
		return err
	}
	if t.step(what, mount(dir)) {
		t.saw("mounted on %s", dir)
		err = unix.Unmount(dir, unix.MNT_DETACH)
	}
	return errors.Join(err, remove())
}

// mountTmpfs uses mount(2).
func mountTmpfs(t *trial) error {
	return mountOn(t, "mount tmpfs", func(dir string) error {
		return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4k")
	})
}

// mountNewAPI uses the calls of Linux 5.2, which older filters do not know.
// The mount stays detached: it never appears in the tree.
func mountNewAPI(t *trial) error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if t.step("fsopen", err) {
		t.saw("opened a file system context")
		return unix.Close(fs)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if t.step("open_tree clone", err) {
		t.saw("cloned the root mount")
		return unix.Close(tree)
	}
	return nil
}

// remountRoot asks for a writable root, and takes it back.
func remountRoot(t *trial) error {
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		return fmt.Errorf("statfs /: %w", err)
	}
	const keep = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_RELATIME
	flags := uintptr(st.Flags) & keep // #nosec G115 -- ST_ and MS_ agree in these bits (statfs(2))
	err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
	if t.step("remount / writable", err) {
		t.saw("remounted /")
		if st.Flags&unix.ST_RDONLY != 0 {
			return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, "")
		}
	}
	return nil
}

// mountCgroup mounts a cgroup hierarchy, the first step of the release_agent
// escape (CVE-2022-0492).
func mountCgroup(t *trial) error {
	for _, m := range []struct{ kind, data string }{{"cgroup", "none,name=systemd"}, {"cgroup2", ""}} {
		// Version 2 has one hierarchy: mounted from the host's own cgroup namespace,
		// which a decoy may be in, its flags (nsdelegate, …) would be set anew for
		// everybody.
		if m.kind == "cgroup2" {
			if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
				t.step("unshare cgroup", err)
				return nil
			}
		}
		err := mountOn(t, "mount "+m.kind, func(dir string) error { return unix.Mount(m.kind, dir, m.kind, 0, m.data) })
		if err != nil {
			return err
		}
		if t.steps[len(t.steps)-1].Refusal == "" {
			return nil
		}
	}
	return nil
}
