package confine

import (
	"slices"

	"golang.org/x/sys/unix"
)

// ConfineCell puts a filter on every thread of the calling process, the
// launcher of an account cell, and so on everything that will ever run in that
// cell. It is what is left of seccomp for an attacker who got out of both
// containers and is the bare account, and lies beneath the containers' own
// filters, which are allowlists and far stricter.
//
// Namespaces, mounts and chroot stay allowed: the launcher makes containers of
// them, and rootless engines do as the account itself. What is refused reaches
// past every namespace (AF_VSOCK, keyrings, io_uring, bpf, other entries to
// the kernel) or has no honest use (TIOCSTI, ptrace). The caller needs
// CAP_SYS_ADMIN.
func ConfineCell() error {
	f, err := compile(cellRules())
	if err != nil {
		return err
	}
	return f.InstallAll()
}

// makesContainers are the calls, refused in containers, that making one takes.
var makesContainers = []uint32{
	unix.SYS_CHROOT, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_MOUNT,
	unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR,
	unix.SYS_PIVOT_ROOT, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_UMOUNT2, unix.SYS_UNSHARE,
}

func cellRules() rules {
	out := rules{arch: auditArch, x32: hasX32, calls: map[uint32]block{}, otherwise: ret(retAllow)}
	for _, nr := range refusedCalls {
		if !slices.Contains(makesContainers, nr) {
			out.calls[nr] = errno(unix.EPERM)
		}
	}
	// Netlink whole: the launcher sets up loopback, and what else netlink can do
	// in this cell's network namespace takes capabilities.
	out.calls[unix.SYS_SOCKET] = lowIn(0, []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}, errno(unix.EAFNOSUPPORT))
	out.calls[unix.SYS_IOCTL] = lowNotIn(1, []uint32{tiocsti, tioclinux}, unix.EPERM)
	return out
}
