package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// loopControl gives free loop devices (kernel: drivers/block/loop.c).
const loopControl = "/dev/loop-control"

// attempts bounds the races with others on this host who look for a loop device.
const attempts = 100

// attach gives a loop device for an image. One that has it already is taken:
// two devices for one image would be two kernels' ideas of one file system.
// The device lets go of the image when neither the returned file nor a mount
// holds it.
func attach(path string) (*os.File, error) {
	image, err := openImage(path, unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer func() { _ = image.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil { // #nosec G115 -- a descriptor
		return nil, fmt.Errorf("disk: stat %s: %w", path, err)
	}
	if dev, err := attached(st); dev != nil || err != nil {
		return dev, err
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("disk: loop devices: %w", err)
	}
	defer func() { _ = control.Close() }()
	for range attempts {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE) // #nosec G115 -- a descriptor
		if err != nil {
			return nil, fmt.Errorf("disk: no free loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0) // #nosec G304 -- a device
		if errors.Is(err, unix.ENXIO) {
			continue // it is being taken away
		}
		if err != nil {
			return nil, fmt.Errorf("disk: loop device: %w", err)
		}
		c := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}} // #nosec G115 -- a descriptor
		copy(c.Info.File_name[:len(c.Info.File_name)-1], path)
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &c) // #nosec G115 -- a descriptor
		if err == nil {
			return dev, nil
		}
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) { // else somebody was faster
			return nil, fmt.Errorf("disk: attach %s to a loop device: %w", path, err)
		}
	}
	return nil, errors.New("disk: others on this host took every free loop device")
}

// attached finds the loop device that holds the file, or nil.
func attached(st unix.Stat_t) (*os.File, error) {
	// Devices that hold a file have this folder.
	found, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err // the pattern is constant
	}
	for _, p := range found {
		dev, err := os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(p))), os.O_RDONLY, 0) // #nosec G304 -- a device; opened for writing, it would wake udev when it is closed
		if err != nil {
			continue // it has gone meanwhile, or this host has no such device node
		}
		if holdsFile(dev, st) {
			return dev, nil
		}
		_ = dev.Close()
	}
	return nil, nil
}

// holdsFile asks the kernel. While dev is open its answer cannot change.
func holdsFile(dev *os.File, st unix.Stat_t) bool {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd())) // #nosec G115 -- a descriptor
	if err != nil {
		return false // nothing is attached
	}
	return info.Inode == st.Ino && sameDevice(info.Device, st.Dev)
}

// sameDevice compares the kernel's huge_encode_dev (loop_info64) with the dev_t
// of stat(2).
func sameDevice(huge, dev uint64) bool {
	return unix.Major(dev) == uint32(huge>>8&0xfff) && unix.Minor(dev) == uint32(huge&0xff|huge>>12&0xffffff00) // #nosec G115 -- masked
}
