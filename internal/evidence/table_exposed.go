package evidence

import (
	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// hidden is how a path looks that a mount namespace does not show, or shows
// covered or read-only.
var hidden = looks("masked", "ENOENT", "EROFS", "EACCES")

// notRoots is how a path looks to who may not touch what is root's. No machine
// has all of the paths that are tried: the half of the control without the
// mechanism says that it has one.
var notRoots = looks("EACCES", "EPERM", "ENOENT")

// exposedAttacks are on what the kernel and the host show as files: procfs,
// sysfs, devices, the host's own.
func exposedAttacks() []Attack {
	open := func(id, name, title, reference string, paths ...string) Attack {
		how := "read"
		if name == "open.write" {
			how = "written"
		}
		return Attack{
			ID: id, Title: title, Tries: "open what can be " + how + " there", Attempt: name, Layer: deny.LayerPod, From: everywhere, At: AtNobody,
			Reference: reference, Lacking: looks("ENOENT", "ENXIO", "ENODEV", "masked"),
			Aim:      func(_, _ Agent, _ World) attempt.Request { return attempt.Request{Paths: paths} },
			Controls: []Control{{Mechanism: mountNS, Off: off(userNS, caps, landlock), Witness: hidden}},
			Also:     looks("EPERM", "ENXIO", "ENODEV", "EINVAL"),
		}
	}
	// What root owns is refused by three more, each by itself.
	roots := func(a Attack) Attack {
		a.Controls = []Control{
			{Mechanism: mountNS, Off: off(userNS, caps, landlock, readOnly), Witness: hidden},
			{Mechanism: userNS, Off: off(mountNS, caps, landlock), Witness: notRoots},
			{Mechanism: caps, Off: off(mountNS, userNS, landlock), Witness: notRoots},
		}
		return a
	}
	writes := func(a Attack) Attack {
		a = roots(a)
		a.Controls = append(a.Controls, Control{Mechanism: landlock, Off: off(mountNS, userNS, caps), Witness: notRoots})
		return a
	}
	return []Attack{
		inContainersOnly(open("proc.memory", "open.read", "read the machine's memory", "proc_kcore(5)", "/proc/kcore", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup")),
		inContainersOnly(open("proc.symbols", "open.read", "learn where the kernel lies", "proc_kallsyms(5)", "/proc/kallsyms")),
		inContainersOnly(open("proc.keys", "open.read", "list keys of everybody", "proc_keys(5)", "/proc/keys")),
		inContainersOnly(open("proc.timers", "open.read", "watch what others do by their timers", "CVE-2017-5967", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/latency_stats")),
		inContainersOnly(open("proc.hardware", "open.read", "learn of the hardware and its interrupts", "CVE-2018-10892", "/proc/interrupts", "/proc/acpi", "/proc/asound", "/proc/scsi")),
		inContainersOnly(open("proc.config", "open.read", "learn how the kernel was built", "Documentation/kbuild/kconfig", "/proc/config.gz")),
		roots(open("proc.log", "open.read", "read the kernel's log", "proc_kmsg(5)", "/proc/kmsg")),
		writes(open("proc.sysctl", "open.write", "change the kernel's settings", "CVE-2022-0811", "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/panic", "/proc/sys/vm/overcommit_memory")),
		writes(open("proc.helper", "open.write", "have the host run a program of its choice for hot-plugged devices or foreign formats", "Documentation/admin-guide/binfmt-misc.rst", "/proc/sys/kernel/hotplug", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/poweroff_cmd", "/proc/sys/kernel/usermodehelper/bset")),
		writes(open("proc.sysrq", "open.write", "crash the machine", "Documentation/admin-guide/sysrq.rst", "/proc/sysrq-trigger")),
		writes(open("proc.interrupts", "open.write", "move the machine's interrupts", "Documentation/core-api/irq/irq-affinity.rst", "/proc/irq/default_smp_affinity")),
		{
			ID: "device.foreign", Title: "find a device of the machine", Tries: "look for nodes in /dev that are not everybody's", Attempt: "dev.nodes",
			Layer: deny.LayerPod, From: everywhere, At: AtNobody, Reference: "Documentation/admin-guide/devices.txt", Aim: nothing,
			Controls: []Control{{Mechanism: mountNS, Witness: looks("absent")}},
		},
		roots(open("device.disk", "open.read", "read the machine's disks", "CWE-250; sd(4)", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/xvda", "/dev/loop0", "/dev/dm-0")),
		roots(open("device.kernel", "open.read", "read the kernel's memory and log", "mem(4)", "/dev/mem", "/dev/port", "/dev/kmsg")),
		inContainersOnly(open("device.tunnel", "open.read", "make a network interface", "CVE-2023-3812; Documentation/networking/tuntap.rst", "/dev/net/tun", "/dev/vhost-net", "/dev/ppp")),
		inContainersOnly(open("device.fuse", "open.read", "answer for files in place of the kernel", "CVE-2022-1011; fuse(4)", "/dev/fuse", "/dev/cuse")),
		inContainersOnly(open("device.virtual", "open.read", "start virtual machines, and reach the host from them", "CVE-2021-29657", "/dev/kvm", "/dev/vhost-vsock", "/dev/vsock", "/dev/vfio/vfio")),
		open("sys.read", "open.read", "learn of the machine from sysfs", "CVE-2020-8694; sysfs(5)", "/sys/kernel", "/sys/class/net", "/sys/devices/virtual", "/sys/module"),
		readOnlyHere(writes(open("sys.helper", "open.write", "have the host run a program for devices", "sysfs(5), uevent_helper", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/profiling", "/sys/kernel/mm/ksm/run", "/sys/kernel/rcu_expedited"))),
		writes(open("cgroup.release_agent", "open.write", "have the host run a program when a cgroup empties", "CVE-2022-0492",
			"/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/pids/release_agent", "/sys/fs/cgroup/cpu/release_agent")),
		writes(open("cgroup.leave", "open.write", "leave its limits for the host's root cgroup", "cgroups(7)",
			"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/pids/cgroup.procs", "/sys/fs/cgroup/cpu/cgroup.procs")),
		roots(open("file.shadow", "open.read", "read the host's password hashes", "shadow(5)", "/etc/shadow", "/etc/gshadow", "/proc/1/root/etc/shadow")),
		{
			ID: "file.host_sockets", Title: "have a service of the host do it", Tries: "connect to the sockets of container engines, D-Bus and systemd", Attempt: "socket.connect",
			Layer: deny.LayerPod, From: everywhere, At: AtNobody, Reference: "CWE-250; unix(7)",
			Aim: func(_, _ Agent, _ World) attempt.Request { return attempt.Request{Paths: hostSockets} },
			Controls: []Control{
				{Mechanism: mountNS, Off: off(landlock), Witness: looks("ENOENT")},
			},
			Also: looks("EACCES"),
		},
	}
}

// readOnlyHere is for what a host may show read-only even to root, as one does
// that is a container itself.
func readOnlyHere(a Attack) Attack { a.Lacking = append(a.Lacking, "EROFS"); return a }

// hostSockets are where services of a host listen that do things for others.
var hostSockets = []string{
	"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
	"/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/run/snapd.socket", "/run/libvirt/libvirt-sock",
	"/run/bulkhead/warden.sock",
}
