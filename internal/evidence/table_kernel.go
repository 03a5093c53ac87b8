package evidence

import (
	"bulkhead/internal/deny"
)

func kernelAttacks() []Attack {
	call := func(id, name, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: name, Layer: deny.LayerPod, From: everywhere, At: AtNobody,
			Reference: reference, Aim: nothing, Controls: controls,
		}
	}
	filter := func(also ...Control) []Control {
		return append([]Control{{Mechanism: seccomp, Witness: filtered}}, also...)
	}
	lacking := func(a Attack, refusals ...string) Attack { a.Lacking = refusals; return a }
	// The bare account may make user namespaces: rootless engines are made of
	// them. What it would gain there is bounded by its cell.
	inContainers := func(a Attack) Attack { a.From = containers; return a }
	return []Attack{
		inContainers(lacking(call("kernel.unshare", "namespace.unshare", "become root of a user namespace", "unshare(CLONE_NEWUSER)", "CVE-2022-0185", filter()...), "ENOSPC", "EPERM", "EACCES", "EINVAL")),
		inContainers(lacking(call("kernel.clone", "namespace.clone", "become root of a user namespace", "clone(CLONE_NEWUSER)", "CVE-2022-0185", filter()...), "ENOSPC", "EPERM", "EACCES", "EINVAL")),
		// Without one, every other kind takes CAP_SYS_ADMIN where the caller is.
		call("kernel.namespaces", "namespace.others", "get a mount, network or PID namespace of its own to work in", "unshare of each kind but user namespaces", "unshare(2)",
			Control{Mechanism: seccomp, Off: off(caps), Witness: filtered},
			Control{Mechanism: caps, Off: off(seccomp), Witness: looks("EPERM")},
		),
		lacking(call("kernel.keyctl", "kernel.keyctl", "use keyrings, which containers share", "keyctl(GET_KEYRING_ID)", "CVE-2016-0728", filter()...), "ENOSYS"),
		lacking(call("kernel.io_uring", "kernel.io_uring", "work that no filter sees", "io_uring_setup", "CVE-2023-2598", filter()...), "ENOSYS", "EPERM"),
		call("kernel.bpf", "kernel.bpf", "load programs into the kernel", "bpf(MAP_CREATE)", "CVE-2021-3490",
			Control{Mechanism: seccomp, Off: off(caps, userNS), Witness: filtered},
			Control{Mechanism: caps, Off: off(seccomp, userNS), Witness: looks("EPERM")},
		),
		lacking(call("kernel.userfaultfd", "kernel.userfaultfd", "stop the kernel in the middle of a copy", "userfaultfd", "CVE-2021-22555", filter()...), "ENOSYS", "EPERM"),
		call("kernel.i386", "kernel.i386", "call the kernel by another table", "int 0x80", "seccomp(2), SECCOMP_RET_DATA arch",
			Control{Mechanism: seccomp, Witness: looks("SIGSYS", "ENOSYS")}),
		call("kernel.handle", "file.handle", "open files outside the root by handle", "open_by_handle_at", "shocker.c, 2014",
			Control{Mechanism: seccomp, Off: off(caps, userNS), Witness: filtered},
			Control{Mechanism: caps, Off: off(seccomp, userNS), Witness: looks("EPERM")},
		),
		call("kernel.core_pattern", "file.core_pattern", "have the host run a program when something crashes", "become id 0, open core_pattern and modprobe for writing", "CVE-2022-0492",
			Control{Mechanism: mountNS, Off: off(userNS, caps, landlock, readOnly), Witness: looks("EROFS", "ENOENT")},
			Control{Mechanism: userNS, Off: off(mountNS, caps, landlock), Witness: looks("EACCES")},
			Control{Mechanism: caps, Off: off(mountNS, userNS, landlock), Witness: looks("EACCES")},
			Control{Mechanism: landlock, Off: off(mountNS, userNS, caps), Witness: looks("EACCES")},
		),
		lacking(call("kernel.terminal", "terminal.inject", "type into the operator's terminal", "ioctl(TIOCSTI), plain and with high bits", "CVE-2017-5226", filter()...), "EIO"),
		call("kernel.setuid", "privilege.setuid", "become root", "setresuid(0,0,0)", "setresuid(2)",
			Control{Mechanism: caps, Off: off(userNS, seccomp), Witness: looks("EPERM")},
			Control{Mechanism: userNS, Off: off(caps, seccomp), Witness: looks("EINVAL")},
		),
		call("kernel.capset", "privilege.capset", "take capabilities", "capset(SYS_ADMIN, NET_ADMIN)", "capabilities(7)",
			Control{Mechanism: caps, Off: off(seccomp), Witness: looks("EPERM")}),
	}
}

func mountAttacks() []Attack {
	mount := func(id, name, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: name, Layer: deny.LayerPod, From: everywhere, At: AtNobody,
			Reference: reference, Aim: nothing, Controls: controls,
		}
	}
	bySeccomp := Control{Mechanism: seccomp, Off: off(caps, landlock), Witness: filtered}
	byCaps := Control{Mechanism: caps, Off: off(seccomp, landlock), Witness: looks("EPERM", "EACCES")}
	byLandlock := Control{Mechanism: landlock, Off: off(seccomp, caps), Witness: looks("EPERM")}
	return []Attack{
		mount("mount.tmpfs", "mount.tmpfs", "mount a file system", "mount(2) of a tmpfs", "CVE-2022-0185", bySeccomp, byCaps, byLandlock),
		mount("mount.new_api", "mount.new_api", "mount by calls that old filters do not know", "fsopen, open_tree", "CVE-2022-0185", bySeccomp, byCaps),
		mount("mount.remount", "mount.remount", "make the root writable", "mount(2), MS_REMOUNT", "mount(2)",
			Control{Mechanism: seccomp, Off: off(caps, landlock, userNS), Witness: filtered},
			Control{Mechanism: caps, Off: off(seccomp, landlock, userNS), Witness: looks("EPERM", "EACCES")},
			Control{Mechanism: landlock, Off: off(seccomp, caps, userNS), Witness: looks("EPERM")},
			// Root made the tree before the user namespace: there its flags are
			// locked (mount_namespaces(7)).
			Control{Mechanism: userNS, Off: off(seccomp, caps, landlock), Witness: looks("EPERM")},
		),
		mount("mount.release_agent", "mount.release_agent", "have the host run a program", "mount a cgroup hierarchy", "CVE-2022-0492", bySeccomp, byCaps, byLandlock),
	}
}
