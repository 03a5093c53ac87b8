package main

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountKinds are further kinds of mount.
func mountKinds() map[string]kind {
	return map[string]kind{
		"mount.bind":        {do: mountBind, harmful: true},
		"mount.propagation": {do: changePropagation, harmful: true},
		"mount.overlay":     {do: mountKind("overlay", "lowerdir=/etc:/tmp"), harmful: true},
		"mount.proc":        {do: mountKind("proc", ""), harmful: true},
		"mount.sysfs":       {do: mountKind("sysfs", ""), harmful: true},
		"mount.mqueue":      {do: mountKind("mqueue", ""), harmful: true},
	}
}

func mountKind(kind, data string) func(*trial) error {
	return func(t *trial) error {
		return mountOn(t, "mount "+kind, func(dir string) error {
			return unix.Mount(kind, dir, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data)
		})
	}
}

// mountBind shows a folder of its own in another place.
func mountBind(t *trial) error {
	return mountOn(t, "bind mount", func(dir string) error {
		return unix.Mount(dir, dir, "", unix.MS_BIND, "")
	})
}

// changePropagation asks that what is mounted elsewhere show here no more: of
// a mount that shows nothing of elsewhere already.
func changePropagation(t *trial) error {
	dir, remove, err := scratch()
	if err != nil {
		return err
	}
	where := filepath.Dir(dir)
	err = unix.Mount("", where, "", unix.MS_PRIVATE, "")
	if errors.Is(err, unix.EINVAL) { // no mount point: the root is one
		where = "/"
		err = unix.Mount("", where, "", unix.MS_PRIVATE, "")
	}
	if t.step("make "+where+" private", err) {
		t.saw("changed how mounts spread")
	}
	return remove()
}
