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
//
// ptrace leaves ptrace(2) to the kernel's other checks (same ids, a user
// namespace that one has capabilities in, no others in the PID namespace),
// because gVisor drives its guests by it.
func ConfineCell(ptrace bool) error {
	name := filterCell
	if ptrace {
		name = filterCellPtrace
	}
	f, err := compiled(name)
	if err != nil {
		return err
	}
	return f.InstallAll()
}

// makesContainers are the calls, refused in containers, that making one takes.
var makesContainers = []string{
	"chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount",
	"mount_setattr", "move_mount", "name_to_handle_at", "open_tree", "open_tree_attr",
	"pivot_root", "setdomainname", "sethostname", "setns", "umount2", "unshare",
}

func cellRules(a architecture, ptrace bool) rules {
	out := rules{arch: a.audit, x32: a.x32, calls: map[uint32]block{}, otherwise: ret(retAllow)}
	for _, name := range slices.Concat(refusedCalls, a.refused) {
		if !slices.Contains(makesContainers, name) {
			out.calls[a.nr(name)] = errno(unix.EPERM)
		}
	}
	// Netlink whole: the launcher sets up loopback, and what else netlink can do
	// in this cell's network namespace takes capabilities. IP as in containers: in
	// a user namespace that the account makes, it may have any socket that is not
	// refused here.
	out.calls[a.nr("socket")] = families(ret(retAllow), errno(unix.EAFNOSUPPORT))
	out.calls[a.nr("ioctl")] = lowNotIn(1, []uint32{tiocsti, tioclinux}, unix.EPERM)
	if ptrace {
		delete(out.calls, a.nr("ptrace"))
	}
	return out
}
