package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/tree"
)

// mount mounts the image at the point, nosuid and nodev.
func (d Disk) mount() error {
	dev, err := attach(d.Image)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	mnt, err := ext4(dev.Name())
	if err != nil {
		return fmt.Errorf("disk: mount %s: %w", d.Image, err)
	}
	defer func() { _ = unix.Close(mnt) }()
	parent, err := tree.Open(filepath.Dir(d.Point))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	at, err := unix.Openat2(parent.FD(), filepath.Base(d.Point), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return fmt.Errorf("disk: mount point %s: %w", d.Point, err)
	}
	defer func() { _ = unix.Close(at) }()
	if err := unix.MoveMount(mnt, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("disk: mount %s on %s: %w", d.Image, d.Point, err)
	}
	return nil
}

// ext4 makes a detached mount of a device.
func ext4(device string) (int, error) {
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("this kernel has no ext4: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	for k, v := range map[string]string{"source": device, "errors": "remount-ro"} {
		if err := unix.FsconfigSetString(fs, k, v); err != nil {
			return -1, fmt.Errorf("%s=%s: %w%s", k, v, err, words(fs))
		}
	}
	// The tables are zeros already, so the kernel need not write them.
	if err := unix.FsconfigSetFlag(fs, "noinit_itable"); err != nil {
		return -1, fmt.Errorf("noinit_itable: %w%s", err, words(fs))
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("%s: %w%s; e2fsck may mend it", device, err, words(fs))
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME)
}

// words is what the kernel adds to an error of fsconfig(2).
func words(fs int) string {
	buf := make([]byte, 512)
	n, err := unix.Read(fs, buf)
	if err != nil || n <= 0 {
		return ""
	}
	return " (" + strings.TrimSpace(string(buf[:n])) + ")"
}

// unmountPatience is how long something on a disk may take to end. Processes of
// an agent are dead when its disk is unmounted; the kernel lets go a little later.
const unmountPatience = 2 * time.Second

// Unmount takes the disk off. Something of the host that still looks into it (a
// shell whose working folder it is) keeps its own view until it leaves; the path
// is free at once. It is no error when nothing is mounted.
func (d Disk) Unmount() error {
	for end := time.Now().Add(unmountPatience); ; time.Sleep(10 * time.Millisecond) {
		_, mounted, err := mountAt(d.Point)
		if err != nil || !mounted {
			return err
		}
		flags := unix.UMOUNT_NOFOLLOW
		if time.Now().After(end) {
			flags |= unix.MNT_DETACH
		}
		err = unix.Unmount(d.Point, flags)
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("disk: unmount %s: %w", d.Point, err)
		}
	}
}

// Mounted says whether this very disk is mounted at its point. Anything else
// that is mounted there is an error.
func (d Disk) Mounted() (bool, error) {
	dev, mounted, err := mountAt(d.Point)
	if err != nil || !mounted {
		return false, err
	}
	var st unix.Stat_t
	if err := unix.Stat(d.Image, &st); err != nil {
		return false, fmt.Errorf("disk: something is mounted on %s, but %s: %w", d.Point, d.Image, err)
	}
	f, err := os.OpenFile(filepath.Join("/dev", loopName(dev)), os.O_RDONLY, 0) // #nosec G304 -- a device
	if err != nil {
		return false, fmt.Errorf("disk: what is mounted on %s is not %s: %w", d.Point, d.Image, err)
	}
	defer func() { _ = f.Close() }()
	if !holdsFile(f, st) {
		return false, fmt.Errorf("disk: what is mounted on %s (device %d:%d) is not %s: unmount it", d.Point, unix.Major(dev), unix.Minor(dev), d.Image)
	}
	return true, nil
}

// loopMajor is the block device number of loop devices (kernel:
// Documentation/admin-guide/devices.txt).
const loopMajor = 7

// loopName names the loop device of a number. Ours have no partitions, with
// which minors would count in steps.
func loopName(dev uint64) string {
	if unix.Major(dev) != loopMajor {
		return "no-loop-device"
	}
	return "loop" + strconv.Itoa(int(unix.Minor(dev)))
}

// mountAt finds what is mounted at a path, topmost, in this mount namespace.
func mountAt(path string) (dev uint64, mounted bool, err error) {
	// The kernel knows (since 5.8): with many agents the list of mounts is long,
	// and reading it for each of them would make the cost of an agent grow with
	// their number.
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, false, nil
	case err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return unix.Mkdev(st.Dev_major, st.Dev_minor), st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, false, fmt.Errorf("disk: %w", err)
	}
	dev, mounted = parseMounts(string(raw), path)
	return dev, mounted, nil
}

// parseMounts reads proc_pid_mountinfo(5) for the last mount at path.
func parseMounts(text, path string) (dev uint64, mounted bool) {
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(path)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 6 || f[4] != escaped {
			continue
		}
		major, minor, ok := strings.Cut(f[2], ":")
		a, err1 := strconv.ParseUint(major, 10, 32)
		b, err2 := strconv.ParseUint(minor, 10, 32)
		if ok && err1 == nil && err2 == nil {
			dev, mounted = unix.Mkdev(uint32(a), uint32(b)), true
		}
	}
	return dev, mounted
}
