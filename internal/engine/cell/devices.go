package cell

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// devices are the only nodes of a container (Documentation/admin-guide/devices.txt).
var devices = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

var deviceLinks = [][2]string{
	{"/proc/self/fd", "fd"},
	{"/proc/self/fd/0", "stdin"},
	{"/proc/self/fd/1", "stdout"},
	{"/proc/self/fd/2", "stderr"},
	{"pts/ptmx", "ptmx"},
}

// Devices makes the detached /dev that every container has; the caller mounts
// it with move_mount and closes it.
func Devices() (int, error) { return deviceMount() }

// deviceMount makes a detached /dev that root owns, with the nodes in it and
// empty folders for pts and shm. Made by root in the initial user namespace,
// or the kernel would ignore the nodes. The mount is read-only: the container
// uses the nodes and cannot add any. When CAP_MKNOD is missing (Bulkhead
// itself inside a container) that is an error, not a /dev without nodes.
func deviceMount() (int, error) {
	fd, err := MemoryMount(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, map[string]string{"size": "64k", "mode": "0755"})
	if err != nil {
		return -1, err
	}
	if err := fillDevices(fd); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("cell: /dev: %w", err)
	}
	return fd, nil
}

func fillDevices(fd int) error {
	for _, d := range devices {
		if err := unix.Mknodat(fd, d.name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil { // #nosec G115 -- small constants
			return fmt.Errorf("node %s: %w", d.name, err)
		}
		// The umask of the starter does not count.
		if err := unix.Fchmodat(fd, d.name, 0o666, 0); err != nil {
			return fmt.Errorf("node %s: %w", d.name, err)
		}
	}
	for _, l := range deviceLinks {
		if err := unix.Symlinkat(l[0], fd, l[1]); err != nil {
			return fmt.Errorf("link %s: %w", l[1], err)
		}
	}
	for _, dir := range []string{"pts", "shm"} {
		if err := unix.Mkdirat(fd, dir, 0o755); err != nil {
			return fmt.Errorf("folder %s: %w", dir, err)
		}
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("read-only: %w", err)
	}
	return nil
}
