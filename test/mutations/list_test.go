package mutations

// edit rewrites one fragment of a source file, which must be there exactly once.
type edit struct{ file, old, now string }

// measure is one mutant with the edits that make it. Edits that several need
// are made once.
type measure struct {
	Mutant
	edits []edit
}

const (
	apply   = "internal/confine/apply.go"
	lock    = "internal/confine/landlock.go"
	rules   = "internal/confine/seccomp_rules.go"
	compile = "internal/confine/seccomp.go"
	filters = "internal/confine/filters.go"
	start   = "internal/engine/cell/start.go"
	script  = "internal/engine/cell/script.go"
	proc    = "internal/engine/cell/proc.go"
	source  = "internal/engine/cell/source.go"
	tree    = "internal/engine/cell/tree.go"
	devices = "internal/engine/cell/devices.go"
	limits  = "internal/cgroup/limits.go"
	guard   = "internal/dial/policy.go"
)

// unless leaves a statement out.
func unless(id, file, statement string) edit {
	return edit{file, statement, "	if !mutant.On(\"" + id + "\") {\n" + statement + "	}\n"}
}

// after adds to a statement.
func after(file, statement, more string) edit { return edit{file, statement, statement + more} }

// readBack are the edits that keep a container from noticing by itself what
// verify and prove are to notice.
var readBack = []edit{
	{apply, "	if p.DropCaps {\n		for _, set := range", "	if p.DropCaps && !mutant.On(\"bounding\", \"capabilities\") {\n		for _, set := range"},
	{apply, "	if p.NoNewPrivs {\n		s.Holds(", "	if p.NoNewPrivs && !mutant.On(\"no_new_privs\") {\n		s.Holds("},
	// Filters are compiled when Bulkhead is built; those of mutants when they start.
	{filters, "func compiled(name string) (*Filter, error) {\n", "func compiled(name string) (*Filter, error) {\n	if !mutant.On(\"\") {\n		return compile(rulesNamed(name))\n	}\n"},
	{rules, "// ours says whether only a server", "func rulesNamed(name string) rules {\n	switch name {\n	case filterCell, filterCellPtrace:\n		return cellRules(native(), name == filterCellPtrace)\n	case filterSeal:\n		return sealRules(native())\n	}\n	return rulesFor(engine.Role(name), native())\n}\n\n// ours says whether only a server"},
	{apply, "	if p.Seccomp {\n		s.Holds(", "	if p.Seccomp && !mutant.On(\"seccomp\") {\n		s.Holds("},
}

// measures lists every one, in the order of the table.
func measures() []measure {
	m := func(id, what string, attacks []string, edits ...edit) measure {
		return measure{Mutant{ID: id, Measure: what, Place: edits[0].file, Attacks: attacks, Role: "runtime"}, edits}
	}
	by := func(attacks ...string) []string { return attacks }
	also := func(attacks []string, x measure) measure { x.Also = attacks; return x }
	asServer := func(x measure) measure { x.Role = "service"; return x }
	asGateway := func(x measure) measure { x.Role = "gateway"; return x }
	all := []measure{
		m("bounding", "every capability leaves the bounding set", nil,
			edit{apply, "if held.Bounding&(1<<c) != 0 {", "if held.Bounding&(1<<c) != 0 && !mutant.On(\"bounding\", \"capabilities\") {"}),
		m("capabilities", "permitted, effective, inheritable and ambient sets are emptied", by("kernel.capset", "mount.tmpfs", "privilege.ambient", "device.make"),
			edit{apply, "	if p.DropCaps {\n		s.Call(\"clear ambient", "	if p.DropCaps && !mutant.On(\"capabilities\") {\n		s.Call(\"clear ambient"}),
		m("no_new_privs", "no_new_privs is set", nil,
			edit{apply, "	if p.NoNewPrivs {\n		s.Call(", "	if p.NoNewPrivs && !mutant.On(\"no_new_privs\") {\n		s.Call("}),
		m("groups", "supplementary groups are dropped", nil, unless("groups", apply, "	s.Call(\"drop supplementary groups\", unix.SYS_SETGROUPS, 0, 0)\n")),
		m("user", "the container's own user id is taken", nil, unless("user", apply, "	s.Call(fmt.Sprintf(\"become user %d\", id), unix.SYS_SETRESUID, id, id, id)\n")),
		m("group", "the container's own group id is taken", nil, unless("group", apply, "	s.Call(fmt.Sprintf(\"become group %d\", id), unix.SYS_SETRESGID, id, id, id)\n")),
		m("rlimit-nofile", "RLIMIT_NOFILE is set", by("exhaust.files"),
			edit{apply, "	for _, l := range all {\n		limit :=", "	for _, l := range all {\n		if mutant.On(\"rlimit-nofile\") && l.id == unix.RLIMIT_NOFILE || mutant.On(\"rlimit-core\") && l.id == unix.RLIMIT_CORE {\n			continue\n		}\n		limit :="}),
		m("rlimit-core", "RLIMIT_CORE is set", by("privilege.core"),
			edit{apply, "	for _, l := range all {\n		limit :=", ""}),
		m("landlock", "the Landlock rules are applied", by("file.root", "net.unlisted", "process.signal", "device.make"),
			edit{apply, "	if rules.ABI > 0 {\n", "	if rules.ABI > 0 && !mutant.On(\"landlock\") {\n"}),
		m("landlock-files", "Landlock handles files", by("file.root", "file.state", "proc.sysctl", "audit.log", "knowledge.write"),
			edit{lock, "HandledAccessFS: r.fs, HandledAccessNet: r.net, Scoped: r.scope}", "HandledAccessFS: mutant.Zero(\"landlock-files\", r.fs), HandledAccessNet: mutant.Zero(\"landlock-tcp\", r.net), Scoped: mutant.Zero(\"landlock-scope\", r.scope)}"},
			edit{lock, "	rules, err := p.paths(r)\n", "	rules, err := p.paths(r)\n	if mutant.On(\"landlock-files\") {\n		rules = nil\n	}\n"}),
		m("landlock-tcp", "Landlock handles TCP", by("net.unlisted", "net.loopback"), edit{lock, "HandledAccessFS: r.fs, HandledAccessNet: r.net, Scoped: r.scope}", ""}),
		m("landlock-scope", "Landlock scopes signals and abstract sockets", by("net.abstract", "process.signal", "process.pidfd"), edit{lock, "HandledAccessFS: r.fs, HandledAccessNet: r.net, Scoped: r.scope}", ""}),
		m("landlock-devices", "Landlock refuses device nodes", by("device.make"),
			edit{lock, "	r := rights{abi: abi, fs: fsRead | fsWrite | fsNever}\n", "	r := rights{abi: abi, fs: fsRead | fsWrite | fsNever}\n	if mutant.On(\"landlock-devices\") {\n		r.fs = fsRead | fsWrite\n	}\n"}),
		m("landlock-root", "Landlock lets / be read, not written", by("file.root"),
			edit{lock, "		landlock.PathAccess(fsRead, \"/\"),\n		landlock.PathAccess((ll", "		landlock.PathAccess(fsRead|mutant.Only[landlock.AccessFSSet](\"landlock-root\", fsWrite), \"/\"),\n		landlock.PathAccess((ll"}),
		m("seccomp", "the seccomp filter is installed", by("kernel.keyctl", "kernel.io_uring", "net.vsock", "process.child"),
			edit{apply, "	if p.Seccomp {\n		f, err", "	if p.Seccomp && !mutant.On(\"seccomp\") {\n		f, err"}),
		m("seccomp-arch", "calls by another architecture's table end the process", by("kernel.i386"),
			edit{compile, "SkipTrue: 1},\n		bpf.RetConstant{Val: retKillProcess},", "SkipTrue: 1},\n		bpf.RetConstant{Val: mutant.Or[uint32](\"seccomp-arch\", retAllow, retKillProcess)},"}),
		m("seccomp-x32", "calls by the x32 table end the process", by("kernel.x32"),
			edit{compile, "		put(x32Bit, ret(retKillProcess))", "		put(x32Bit, ret(mutant.Or[uint32](\"seccomp-x32\", retAllow, retKillProcess)))"}),
		m("seccomp-default", "a call that no list names does not exist", nil,
			edit{rules, "otherwise: errno(unix.ENOSYS)}\n", "otherwise: errno(unix.ENOSYS)}\n	if mutant.On(\"seccomp-default\") {\n		out.otherwise = ret(retAllow)\n	}\n"}),
		m("seccomp-families", "sockets of other families are refused", by("net.vsock", "net.vsock_high", "net.families", "net.packet"),
			edit{rules, "	refuse := errno(unix.EAFNOSUPPORT)\n", "	refuse := errno(unix.EAFNOSUPPORT)\n	if mutant.On(\"seccomp-families\") {\n		refuse = ret(retAllow)\n	}\n"}),
		m("seccomp-protocols", "IP sockets speak TCP and UDP alone, no MPTCP and no echoes", by("net.mptcp", "net.ping_socket", "net.ping"),
			edit{rules, "	protocol := lowIn(2, inetProtocols, errno(unix.EPROTONOSUPPORT))\n", "	protocol := lowIn(2, inetProtocols, errno(unix.EPROTONOSUPPORT))\n	if mutant.On(\"seccomp-protocols\") {\n		protocol = ret(retAllow)\n	}\n"}),
		m("seccomp-types", "IP sockets are streams and datagrams, not raw and not SOCK_PACKET", by("net.packet", "net.raw"),
			edit{rules, "	kind := maskedIn(1, typeMask, inetTypes, errno(unix.EPERM)) // what the kernel says of raw sockets\n", "	kind := maskedIn(1, typeMask, inetTypes, errno(unix.EPERM)) // what the kernel says of raw sockets\n	if mutant.On(\"seccomp-types\") {\n		kind = nil\n	}\n"}),
		m("seccomp-netlink", "netlink is for routes alone", by("net.netlink"),
			edit{rules, "		route = lowIn(2, []uint32{unix.NETLINK_ROUTE}, errno(unix.EPROTONOSUPPORT))\n", "		route = lowIn(2, []uint32{unix.NETLINK_ROUTE}, errno(unix.EPROTONOSUPPORT))\n		if mutant.On(\"seccomp-netlink\") {\n			route = ret(retAllow)\n		}\n"}),
		m("seccomp-socketpair", "pairs of sockets are unix sockets", nil,
			after(rules, "	out.calls[a.nr(\"socketpair\")] = lowIn(0, []uint32{unix.AF_UNIX}, errno(unix.EAFNOSUPPORT))\n", "	if mutant.On(\"seccomp-socketpair\") {\n		out.calls[a.nr(\"socketpair\")] = ret(retAllow)\n	}\n")),
		m("seccomp-clone", "clone makes no namespaces", by("kernel.clone"), edit{rules, "lowClear(0, namespaceFlags, unix.EPERM)", "lowClear(0, mutant.Zero(\"seccomp-clone\", uint32(namespaceFlags)), unix.EPERM)"}),
		m("seccomp-clone3", "clone3, whose flags no filter sees, does not exist", by("kernel.clone3"),
			edit{rules, "	out.calls[a.nr(\"clone3\")] = errno(unix.ENOSYS)\n", "	out.calls[a.nr(\"clone3\")] = errno(unix.ENOSYS)\n	if mutant.On(\"seccomp-clone3\") {\n		out.calls[a.nr(\"clone3\")] = ret(retAllow)\n	}\n"}),
		m("seccomp-tiocsti", "nothing is typed into a terminal", by("kernel.terminal"),
			edit{rules, "[]uint32{tiocsti, tioclinux}", "[]uint32{mutant.Or[uint32](\"seccomp-tiocsti\", tioclinux, tiocsti), mutant.Or[uint32](\"seccomp-tioclinux\", tiocsti, tioclinux)}"}),
		m("seccomp-tioclinux", "nothing is pasted into a console", by("kernel.tioclinux"), edit{rules, "[]uint32{tiocsti, tioclinux}", ""}),
		m("seccomp-personality", "no personality that weakens", by("kernel.personality"),
			after(rules, "	out.calls[a.nr(\"personality\")] = lowIn(0, personalities, errno(unix.EPERM))\n", "	if mutant.On(\"seccomp-personality\") {\n		out.calls[a.nr(\"personality\")] = ret(retAllow)\n	}\n")),
		asGateway(m("seccomp-listen", "our own servers do not listen", nil, unless("seccomp-listen", rules, "		out.calls[a.nr(\"listen\")] = errno(unix.EPERM)\n"))),
		asGateway(m("seccomp-bind", "our own servers do not bind", nil, unless("seccomp-bind", rules, "			out.calls[a.nr(\"bind\")] = errno(unix.EPERM)\n"))),
		asServer(m("server-netlink", "servers have no netlink at all", nil,
			edit{rules, "	netlink := r != engine.RoleDialer", "	netlink := mutant.On(\"server-netlink\") || r != engine.RoleDialer"})),
		m("user-namespace", "a user namespace of its own", by("kernel.setuid", "kernel.core_pattern", "net.raw"),
			edit{script, "len(l.spec.User.Map) > 0 && l.spec.Has(engine.MechUserNS)", "len(l.spec.User.Map) > 0 && l.spec.Has(engine.MechUserNS) && !mutant.On(\"user-namespace\")"}),
		m("pid-namespace", "a PID namespace of its own", by("process.see", "process.signal", "token.arguments", "token.processes", "vault.token_of", "code.see"),
			edit{start, "	if s.Has(engine.MechPIDNS) {\n		flags", "	if s.Has(engine.MechPIDNS) && !mutant.On(\"pid-namespace\") {\n		flags"},
			edit{script, "l.tree != nil && l.spec.Has(engine.MechPIDNS)", "l.tree != nil && l.spec.Has(engine.MechPIDNS) && !mutant.On(\"pid-namespace\")"}),
		m("net-namespace", "a network namespace of its own", by("net.unlisted", "net.abstract", "net.loopback_udp", "front.port"),
			edit{start, "!s.Network.Host && s.Has(engine.MechNetNS)", "!s.Network.Host && s.Has(engine.MechNetNS) && !mutant.On(\"net-namespace\")"}),
		m("mount-namespace", "a mount namespace and a root of its own", by("token.files", "file.other", "file.host_sockets", "device.foreign", "vault.keys", "control.socket", "knowledge.other", "code.files"),
			edit{start, "	if l.spec.Has(engine.MechMountNS) {\n		l.tree", "	if l.spec.Has(engine.MechMountNS) && !mutant.On(\"mount-namespace\") {\n		l.tree"}),
		m("ipc-namespace", "an IPC namespace of its own", nil,
			edit{start, "uintptr(unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)", "mutant.Zero(\"ipc-namespace\", uintptr(unix.CLONE_NEWIPC)) | mutant.Zero(\"uts-namespace\", uintptr(unix.CLONE_NEWUTS))"}),
		m("uts-namespace", "a UTS namespace of its own", nil, edit{start, "uintptr(unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)", ""},
			edit{script, "	if h := l.spec.Hostname; h != \"\" {\n", "	if h := l.spec.Hostname; h != \"\" && !mutant.On(\"uts-namespace\") {\n"}),
		m("cgroup-namespace", "a cgroup namespace of its own", nil,
			edit{script, "	s.child.Call(\"make a cgroup namespace\", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)\n", "	if !mutant.On(\"cgroup-namespace\") {\n		s.child.Call(\"make a cgroup namespace\", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)\n	}\n"}),
		m("descriptors", "all other descriptors are closed", by("file.descriptors"),
			edit{script, "	s.Call(\"close all other descriptors\", unix.SYS_CLOSE_RANGE, len(fds), ^uint32(0), 0)\n", "	if !mutant.On(\"descriptors\") {\n		s.Call(\"close all other descriptors\", unix.SYS_CLOSE_RANGE, len(fds), ^uint32(0), 0)\n	}\n"}),
		m("root-read-only", "the root is mounted read-only", by("file.root"),
			edit{tree, "attributes(!s.Has(engine.MechReadOnly), true)", "attributes(!s.Has(engine.MechReadOnly) || mutant.On(\"root-read-only\"), true)"}),
		m("given-read-only", "what is mounted to be read is read-only", by("knowledge.write", "knowledge.swap"),
			edit{tree, "attributes(m.Writable || !s.Has(engine.MechReadOnly), m.Exec)", "attributes(m.Writable || !s.Has(engine.MechReadOnly) || mutant.On(\"given-read-only\"), m.Exec)"}),
		m("nosuid", "mounts are nosuid", nil, edit{source, "uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)", "mutant.Zero(\"nosuid\", uint64(unix.MOUNT_ATTR_NOSUID)) | mutant.Zero(\"nodev\", uint64(unix.MOUNT_ATTR_NODEV))"}),
		m("nodev", "mounts are nodev", nil, edit{source, "uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)", ""}),
		m("proc-sys", "/proc/sys is read-only", by("proc.sysctl", "kernel.core_pattern"),
			edit{proc, "	for _, path := range readOnlyProc {\n", "	for _, path := range readOnlyProc {\n		if mutant.On(\"proc\" + strings.ReplaceAll(strings.TrimPrefix(path, \"/proc\"), \"/\", \"-\")) {\n			continue\n		}\n"},
			edit{proc, "	\"fmt\"\n", "	\"fmt\"\n	\"strings\"\n"}),
		m("proc-irq", "/proc/irq is read-only", by("proc.interrupts"), edit{proc, "	for _, path := range readOnlyProc {\n", ""}),
		m("mask-kallsyms", "/proc/kallsyms is covered", by("proc.symbols"),
			edit{proc, "	for _, path := range maskedProc {\n", "	for _, path := range maskedProc {\n		if mutant.On(\"mask-\" + strings.TrimPrefix(path, \"/proc/\")) {\n			continue\n		}\n"}),
		m("mask-keys", "/proc/keys is covered", by("proc.keys"), edit{proc, "	for _, path := range maskedProc {\n", ""}),
		m("mask-timer_list", "/proc/timer_list is covered", by("proc.timers"), edit{proc, "	for _, path := range maskedProc {\n", ""}),
		m("mask-interrupts", "/proc/interrupts is covered", by("proc.hardware"), edit{proc, "	for _, path := range maskedProc {\n", ""}),
		m("mask-config.gz", "/proc/config.gz is covered", by("proc.config"), edit{proc, "	for _, path := range maskedProc {\n", ""}),
		m("devices", "/dev has six nodes and no more", by("device.foreign"),
			edit{devices, "	for _, d := range devices {\n", "	if mutant.On(\"devices\") {\n		if err := unix.Mknodat(fd, \"kmsg\", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 11))); err != nil {\n			return err\n		}\n	}\n	for _, d := range devices {\n"}),
		also(by("exhaust.memory"), m("memory", "memory is bounded", nil, edit{limits, "	if g.tree.unified != \"\" {\n		if l.MemoryBytes > 0 {", "	if mutant.On(\"memory\") {\n		l.MemoryBytes = 0\n	}\n	if mutant.On(\"pids\") {\n		l.PIDs = 0\n	}\n	if mutant.On(\"processor\") {\n		l.MilliCPU = 0\n	}\n	if g.tree.unified != \"\" {\n		if l.MemoryBytes > 0 {"})),
		also(by("exhaust.processes"), m("pids", "the number of processes is bounded", nil, edit{limits, "	if g.tree.unified != \"\" {\n		if l.MemoryBytes > 0 {", ""})),
		also(by("exhaust.processor"), m("processor", "processor time is bounded", nil, edit{limits, "	if g.tree.unified != \"\" {\n		if l.MemoryBytes > 0 {", ""})),
		m("guard", "names are checked before they are dialled", by("dialer.unlisted", "dialer.port", "dialer.metadata", "dialer.private", "dialer.rebind", "front.dialer"), edit{guard, "	if p.unguarded {\n		return team.Destination{Host", "	if p.unguarded || mutant.On(\"guard\") {\n		return team.Destination{Host"},
			edit{guard, "	if p.unguarded {\n		return addrs", "	if p.unguarded || mutant.On(\"guard\") {\n		return addrs"}),
	}
	for _, name := range refusedCalls() {
		all = append(all, also(attacksBy[name], m("call-"+name, "the call "+name+" is refused", nil,
			edit{rules, "			out.calls[a.nr(name)] = errno(unix.EPERM)\n", "			if mutant.On(\"call-\" + name) {\n				out.calls[a.nr(name)] = ret(retAllow)\n				continue\n			}\n			out.calls[a.nr(name)] = errno(unix.EPERM)\n"})))
	}
	return all
}

// attacksBy are attacks that one call makes, by which verify notices that the
// filter lets it through. Where there is none, prove does alone, which reads the
// filter whole. They are made with -full alone: see Mutant.Also.
var attacksBy = map[string][]string{
	"add_key": {"kernel.add_key"}, "bpf": {"kernel.bpf"}, "chroot": {"kernel.chroot"}, "fanotify_init": {"kernel.fanotify"},
	"fsopen": {"mount.new_api"}, "io_uring_setup": {"kernel.io_uring"}, "kcmp": {"kernel.kcmp"}, "keyctl": {"kernel.keyctl"},
	"memfd_secret": {"kernel.memfd_secret"}, "mount": {"mount.tmpfs", "mount.bind"}, "move_mount": {"mount.descriptors"}, "mount_setattr": {"mount.descriptors"},
	"open_by_handle_at": {"kernel.handle"}, "perf_event_open": {"kernel.perf"}, "pidfd_getfd": {"kernel.pidfd_getfd"}, "pivot_root": {"mount.pivot_root"},
	"process_madvise": {"kernel.process_madvise"}, "process_mrelease": {"kernel.process_mrelease"}, "process_vm_readv": {"kernel.process_vm"},
	"ptrace": {"process.child"}, "quotactl": {"kernel.quota"}, "reboot": {"kernel.reboot"}, "request_key": {"kernel.request_key"},
	"set_mempolicy": {"kernel.memory_policy"}, "sethostname": {"kernel.hostname"}, "setns": {"kernel.setns"}, "settimeofday": {"kernel.clock"},
	"swapon": {"kernel.swap"}, "syslog": {"kernel.log"}, "umount2": {"mount.umount"}, "unshare": {"kernel.unshare", "kernel.namespaces"}, "userfaultfd": {"kernel.userfaultfd"},
	"modify_ldt": {"kernel.ldt"},
}
