package evidence

import "bulkhead/internal/deny"

// callAttacks are system calls that an agent has no use for.
func callAttacks() []Attack {
	call := func(id, name, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: name, Layer: deny.LayerPod, From: everywhere, At: AtNobody,
			Reference: reference, Aim: nothing, Controls: controls,
		}
	}
	lacking := func(a Attack, refusals ...string) Attack { a.Lacking = refusals; return a }
	inContainers := func(a Attack) Attack { a.From = containers; return a }
	also := func(a Attack, refusals ...string) Attack { a.Also = refusals; return a }
	bySeccomp := Control{Mechanism: seccomp, Witness: filtered}
	// Calls that take a capability of the namespace that the caller has itself.
	own := []Control{
		{Mechanism: seccomp, Off: off(caps), Witness: filtered},
		{Mechanism: caps, Off: off(seccomp), Witness: looks("EPERM")},
	}
	// Calls that take one of the initial user namespace.
	initial := []Control{
		{Mechanism: seccomp, Off: off(caps, userNS), Witness: filtered},
		{Mechanism: caps, Off: off(seccomp, userNS), Witness: looks("EPERM")},
		{Mechanism: userNS, Off: off(seccomp, caps), Witness: looks("EPERM")},
	}
	return []Attack{
		lacking(call("kernel.module", "call.module", "load code into the kernel", "init_module, finit_module, delete_module", "CVE-2017-6074: a hole in a module that anybody can have loaded; init_module(2)", initial...), "ENOSYS"),
		lacking(call("kernel.kexec", "call.kexec", "start another kernel", "kexec_load, kexec_file_load", "kexec_load(2)", initial...), "ENOSYS"),
		call("kernel.reboot", "call.reboot", "restart the machine", "reboot without its magic numbers", "reboot(2)", own...),
		lacking(call("kernel.swap", "call.swap", "have memory written to a file", "swapon, swapoff", "swapon(2)", initial...), "ENOSYS"),
		lacking(call("kernel.acct", "call.acct", "have the kernel write to a file of its choice", "acct", "acct(2)", initial...), "ENOSYS"),
		call("kernel.log", "call.syslog", "read the kernel's log, which shows addresses and other agents' crashes", "syslog(SYSLOG_ACTION_SIZE_UNREAD)", "syslog(2); Documentation/admin-guide/sysctl/kernel.rst, dmesg_restrict", initial...),
		call("kernel.clock", "call.clock", "set the machine's clock", "settimeofday, clock_adjtime", "settimeofday(2)", initial...),
		call("kernel.hostname", "call.hostname", "change the host name", "sethostname", "sethostname(2)", own...),
		lacking(call("kernel.quota", "call.quota", "work on quotas of the host", "quotactl(Q_SYNC)", "quotactl(2)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.memory_policy", "call.memory_policy", "place memory of others on nodes", "set_mempolicy, move_pages", "CVE-2017-7616; move_pages(2)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.process_madvise", "call.process_madvise", "page out another process's memory", "process_madvise of itself", "process_madvise(2)", Control{Mechanism: seccomp, Off: off(caps, userNS), Witness: filtered}), "ENOSYS"),
		lacking(call("kernel.process_mrelease", "call.process_mrelease", "take memory from a dying process", "process_mrelease of itself", "process_mrelease(2)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.pidfd_getfd", "call.pidfd_getfd", "take descriptors out of another process", "pidfd_getfd of its own standard input", "pidfd_getfd(2)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.process_vm", "call.process_vm", "read and write another process's memory in one call", "process_vm_readv, process_vm_writev of itself", "process_vm_readv(2)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.kcmp", "call.kcmp", "learn where the kernel keeps things", "kcmp of itself with itself", "kcmp(2)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.perf", "call.perf", "watch the processor, and reach the events code of the kernel", "perf_event_open of a software clock", "CVE-2023-2235; CVE-2013-2094", Control{Mechanism: seccomp, Off: off(caps, userNS), Witness: filtered}), "ENOSYS", "ENOENT", "EOPNOTSUPP"),
		lacking(call("kernel.fanotify", "call.fanotify", "hear of every file that is opened", "fanotify_init", "fanotify(7)", bySeccomp), "ENOSYS", "EPERM", "EINVAL"),
		lacking(call("kernel.memfd_secret", "call.memfd_secret", "hide memory from the host", "memfd_secret", "memfd_secret(2)", bySeccomp), "ENOSYS"),
		call("kernel.setns", "call.setns", "enter a namespace", "setns into its own UTS namespace", "setns(2)", own...),
		call("kernel.chroot", "call.chroot", "change its root, the old way out of one", "chroot to /", "chroot(2): a root can leave a chroot", own...),
		lacking(call("kernel.add_key", "call.add_key", "store what outlives it in keyrings", "add_key to its thread's keyring", "CVE-2016-0728; keyrings(7)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.request_key", "call.request_key", "have the kernel start a program of the host that fetches a key", "request_key", "CVE-2017-17807; request_key(2)", bySeccomp), "ENOSYS"),
		// The cell's own filter leaves these to the account: they bound nobody else.
		inContainers(lacking(call("kernel.clone3", "call.clone3", "get a user namespace past a filter that sees no flags", "clone3 with arguments of no size", "clone3(2): its flags lie behind a pointer", bySeccomp), "ENOSYS")),
		inContainers(call("kernel.personality", "call.personality", "switch off the randomising of its addresses", "personality(ADDR_NO_RANDOMIZE)", "personality(2)", bySeccomp)),
		call("kernel.tioclinux", "call.tioclinux", "paste into the console", "ioctl(TIOCLINUX)", "CVE-2023-28100", bySeccomp),
		lacking(call("kernel.ldt", "arch.modify_ldt", "give itself segments of memory", "modify_ldt, reading", "CVE-2017-17053; modify_ldt(2)", bySeccomp), "ENOSYS"),
		lacking(call("kernel.ports", "arch.ports", "talk to the hardware", "ioperm, iopl", "ioperm(2)", initial...), "ENOSYS"),
		also(lacking(call("kernel.x32", "arch.x32", "call the kernel by the x32 table", "getpid with bit 30", "CVE-2014-0038; seccomp(2), x32", Control{Mechanism: seccomp, Witness: looks("SIGSYS")}), "ENOSYS"), "ENOSYS"),
	}
}

// moreMountAttacks are further ways to change what files are where.
func moreMountAttacks() []Attack {
	mount := func(id, name, title, tries, reference string, controls ...Control) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: name, Layer: deny.LayerPod, From: everywhere, At: AtNobody,
			Reference: reference, Aim: nothing, Controls: controls,
		}
	}
	// With the flags of a tree that root made locked, the user namespace refuses
	// some as well; there it is off, too.
	three := func(more ...Control) []Control {
		return append([]Control{
			{Mechanism: seccomp, Off: off(caps, landlock, userNS), Witness: filtered},
			{Mechanism: caps, Off: off(seccomp, landlock, userNS), Witness: looks("EPERM", "EACCES")},
			{Mechanism: landlock, Off: off(seccomp, caps, userNS), Witness: looks("EPERM")},
		}, more...)
	}
	two := []Control{
		{Mechanism: seccomp, Off: off(caps, landlock), Witness: filtered},
		{Mechanism: caps, Off: off(seccomp, landlock), Witness: looks("EPERM")},
	}
	lacking := func(a Attack, refusals ...string) Attack { a.Lacking = refusals; return a }
	return []Attack{
		mount("mount.bind", "mount.bind", "show files in another place", "mount(2), MS_BIND", "CVE-2021-30465", three()...),
		mount("mount.propagation", "mount.propagation", "have its mounts show elsewhere", "mount(2), MS_PRIVATE", "mount_namespaces(7)", three()...),
		lacking(mount("mount.overlay", "mount.overlay", "lay one tree over another", "mount(2) of an overlay", "CVE-2023-0386", three()...), "ENODEV"),
		mount("mount.proc", "mount.proc", "get a /proc without its masks", "mount(2) of proc", "CVE-2025-31133", three()...),
		mount("mount.sysfs", "mount.sysfs", "get a /sys", "mount(2) of sysfs", "sysfs(5)", three()...),
		lacking(mount("mount.mqueue", "mount.mqueue", "see the message queues", "mount(2) of mqueue", "mq_overview(7)", three()...), "ENODEV"),
		mount("mount.descriptors", "call.descriptors", "move and change mounts by descriptors", "move_mount, mount_setattr, fspick", "move_mount(2)", two...),
		mount("mount.pivot_root", "call.pivot_root", "exchange its root", "pivot_root", "pivot_root(2)", two...),
		mount("mount.umount", "call.umount", "take away what covers files", "umount2", "mount_namespaces(7), locked mounts", three()...),
	}
}
