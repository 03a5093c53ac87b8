package routes

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Places where BPF programs are attached (enum bpf_attach_type, linux/bpf.h).
const (
	tcxEgress      = 47
	netkitPrimary  = 48
	queryProg      = 16 // BPF_PROG_QUERY
	queryEffective = 1  // BPF_F_QUERY_EFFECTIVE: with those of the groups above
)

// onSockets are the programs of a cgroup that can change where its sockets connect,
// or what leaves them. Those that only drop (ingress, egress) are not among them.
var onSockets = []struct {
	kind uint32
	name string
}{
	{2, "sock_create"},
	{3, "sock_ops"},
	{8, "bind4"},
	{9, "bind6"},
	{10, "connect4"},
	{11, "connect6"},
	{14, "sendmsg4"},
	{15, "sendmsg6"},
	{22, "setsockopt"},
}

// query counts the programs at one place. A kind of place that this kernel does not
// know holds none.
func query(target, kind, flags uint32) (int, error) {
	attr := struct {
		target, kind, flags, attachFlags uint32
		progIDs                          uint64
		count, pad                       uint32
		progFlags, linkIDs, linkFlags    uint64
		revision                         uint64
	}{target: target, kind: kind, flags: flags}
	_, _, errno := unix.Syscall(unix.SYS_BPF, queryProg, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)) // #nosec G103 -- bpf(2)
	runtime.KeepAlive(&attr)
	switch errno {
	case 0:
		return int(attr.count), nil
	case unix.EINVAL, unix.ENOENT, unix.ENOSYS:
		return 0, nil
	}
	return 0, errno
}

// programs lists the BPF programs at the egress side of an interface.
func programs(l link) ([]string, error) {
	var out []string
	for _, at := range []struct {
		kind uint32
		name string
	}{{tcxEgress, "tcx"}, {netkitPrimary, "netkit"}} {
		n, err := query(uint32(l.index), at.kind, 0) // #nosec G115 -- an index of the kernel's
		if err != nil {
			return nil, fmt.Errorf("bpf(2) does not say what %s has at %s: %w", l.name, at.name, err)
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("interface %s has %d BPF programs at %s", l.name, n, at.name))
		}
	}
	return out, nil
}

// CgroupPrograms lists the BPF programs that judge or change what the sockets of a
// process do, those of the groups above its own included. An error says that it
// is not known.
func CgroupPrograms(pid int) ([]string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // #nosec G304 -- procfs
	if err != nil {
		return nil, err
	}
	path, ok := unified(string(raw))
	if !ok {
		return nil, fmt.Errorf("process %d is in no cgroup of version 2 that could be asked", pid)
	}
	dir, err := openCgroup(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(dir) }()
	return programsOf(dir, path)
}

// programsOf asks an open group.
func programsOf(dir int, path string) ([]string, error) {
	var out []string
	for _, at := range onSockets {
		n, err := query(uint32(dir), at.kind, queryEffective) // #nosec G115 -- a descriptor
		if err != nil {
			return nil, fmt.Errorf("bpf(2) does not say what cgroup %s has at %s: %w", path, at.name, err)
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("cgroup %s has %d BPF programs at %s", path, n, at.name))
		}
	}
	return out, nil
}

// unified finds the group of the hierarchy of version 2 (cgroups(7)).
func unified(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::/"); ok {
			return "/" + path, !strings.Contains("/"+path+"/", "/../")
		}
	}
	return "", false
}

// openCgroup opens a group of version 2: below where the hierarchy is mounted,
// else by a mount of its own that is attached nowhere (on hosts of version 1 it
// is there, but mounted by nobody). Never that where it is mounted: each new
// mount sets the flags of the one hierarchy, nsdelegate among them, anew.
func openCgroup(path string) (int, error) {
	for _, of := range []string{"self", "1"} {
		raw, err := os.ReadFile("/proc/" + of + "/mountinfo") // #nosec G304 -- procfs
		if err != nil {
			return -1, err
		}
		point := mountedAt(string(raw))
		if point == "" {
			continue
		}
		if of != "self" {
			point = "/proc/" + of + "/root" + point
		}
		dir, err := unix.Open(point+path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return -1, fmt.Errorf("cgroup %s below %s: %w", path, point, err)
		}
		return dir, nil
	}
	return openUnmounted(path)
}

// mountedAt finds where the whole hierarchy of version 2 is mounted, in the text
// of proc_pid_mountinfo(5); empty: nowhere, or by a path with unusual letters.
func mountedAt(mountinfo string) string {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if ok && len(f) >= 5 && f[3] == "/" && strings.HasPrefix(after, "cgroup2 ") && !strings.Contains(f[4], "\\") {
			return f[4]
		}
	}
	return ""
}

func openUnmounted(path string) (int, error) {
	no := func(what string, err error) (int, error) {
		if errors.Is(err, unix.ENODEV) {
			return -1, errors.New("this kernel has no cgroups of version 2")
		}
		return -1, fmt.Errorf("cgroup %s: %s: %w", path, what, err)
	}
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return no("fsopen", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigCreate(fs); err != nil {
		return no("fsconfig", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return no("fsmount", err)
	}
	defer func() { _ = unix.Close(mount) }()
	dir, err := unix.Openat(mount, "."+path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return no("open", err)
	}
	return dir, nil
}
