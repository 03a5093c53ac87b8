package doctor

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/deny"
)

// tested are the distributions that Bulkhead's tests boot (test/vm).
var tested = []string{"12", "13"}

// Kernels: the oldest one that the tests boot (Debian 12), and the one that
// brought Landlock ABI 6.
var (
	oldestKernel = [2]int{6, 1}
	wantedKernel = [2]int{6, 12}
)

// hostChecks are the floor: what is nobody's layer and everybody's ground.
func hostChecks() []Check {
	return []Check{
		{
			Layer: deny.LayerHost, Name: "distribution", Look: distribution,
			Why:  "Bulkhead was run on Debian 12 and 13; elsewhere paths, packages and defaults differ",
			Mend: "use Debian 12 or 13, or run sudo make test here and see what holds",
		},
		{
			Layer: deny.LayerHost, Name: "kernel", Look: kernelVersion,
			Why:  "walls are the kernel's; Linux 6.12 is the first with all of them",
			Mend: "boot Linux 6.12 or later (Debian 12 has one in its backports)",
		},
		{
			Layer: deny.LayerHost, Name: "core dumps", Look: corePattern,
			Why:  "a program named here runs as root outside every wall whenever an agent crashes, whatever the agent's core limit is (core(5))",
			Mend: "sysctl kernel.core_pattern=core, and remove the package that sets it (systemd-coredump, apport)",
		},
		{
			Layer: deny.LayerHost, Name: "ptrace", Why: "an account's processes should not be able to open one another (Yama)",
			Mend: "sysctl kernel.yama.ptrace_scope=1",
			Look: sysctl("/proc/sys/kernel/yama/ptrace_scope", Answer{State: Weak, Found: "this kernel has no Yama", Mend: "boot a kernel with CONFIG_SECURITY_YAMA; agents are kept from ptrace by seccomp alone"}, func(n int) Answer {
				if n == 0 {
					return Answer{State: Weak, Found: "0: any process of the same account"}
				}
				return Answer{State: OK}
			}),
		},
		{
			Layer: deny.LayerHost, Name: "unprivileged bpf", Why: "the verifier of eBPF has been a way into the kernel; seccomp keeps agents off it, this is the second lock",
			Mend: "sysctl kernel.unprivileged_bpf_disabled=2",
			Look: sysctl("/proc/sys/kernel/unprivileged_bpf_disabled", Answer{State: OK, Found: "this kernel has no bpf(2)"}, func(n int) Answer {
				if n == 0 {
					return Answer{State: Weak, Found: "0: open to every account"}
				}
				return Answer{State: OK}
			}),
		},
		{
			Layer: deny.LayerHost, Name: "io_uring", Why: "io_uring does what system calls do without being seen by seccomp; seccomp keeps agents off it, this is the second lock",
			Mend: "sysctl kernel.io_uring_disabled=2, unless something on this host uses it",
			Look: sysctl("/proc/sys/kernel/io_uring_disabled", Answer{State: Weak, Found: "this kernel cannot switch it off", Mend: "boot Linux 6.6 or later"}, func(n int) Answer {
				if n == 0 {
					return Answer{State: Weak, Found: "0: open to every account"}
				}
				return Answer{State: OK}
			}),
		},
		{
			Layer: deny.LayerHost, Name: "low ports", Why: "an account that may take a port below 1024 can pose as a service of this host",
			Mend: "sysctl net.ipv4.ip_unprivileged_port_start=1024",
			Look: sysctl("/proc/sys/net/ipv4/ip_unprivileged_port_start", Answer{State: Unknown, Found: "not there"}, func(n int) Answer {
				if n < 1024 {
					return Answer{State: Weak, Found: fmt.Sprintf("every account may listen from port %d on", n)}
				}
				return Answer{State: OK}
			}),
		},
		{
			Layer: deny.LayerHost, Name: "swap", Look: swap,
			Why:  "what an agent holds in memory, secrets included, may be written to a disk",
			Mend: "encrypt it, use zram, or run swapoff -a and take it out of /etc/fstab",
		},
		{
			Layer: deny.LayerHost, Name: "clock", Look: clock,
			Why:  "certificates, records and time limits are only as right as the clock",
			Mend: "apt install systemd-timesyncd (or chrony)",
		},
		{
			Layer: deny.LayerHost, Name: "disk", Look: disk,
			Why:  "a full disk stops every agent and the warden's ledger",
			Mend: "free space, or put a larger filesystem there",
		},
		{
			Layer: deny.LayerHost, Name: "proc", Look: procVisible,
			Why:  "the kernel lets a container mount proc only where an uncovered one is visible",
			Mend: "unmount what covers it; inside another container give that one an unmasked /proc",
		},
		{
			Layer: deny.LayerHost, Name: "mount propagation", Look: propagation,
			Why:  "with a private root folder, what is mounted later is not seen by rootless Podman",
			Mend: "mount --make-rshared /",
		},
	}
}

func distribution(_ context.Context, h Host) Answer {
	o := h.release()
	a := Answer{State: NotSupported, Found: o.String(), Where: "/etc/os-release"}
	switch {
	case o.id == "":
		return Answer{State: Unknown, Found: "not named", Where: a.Where}
	case !o.debian():
		a.Found += ": nothing was ever run there"
		return a
	}
	for _, v := range tested {
		if o.version == v {
			a.State = OK
			return a
		}
	}
	a.Found += ": not one of those that the tests boot"
	return a
}

func kernelVersion(_ context.Context, h Host) Answer {
	const where = "/proc/sys/kernel/osrelease"
	s, err := h.text(where)
	if err != nil {
		return unread(where, err)
	}
	v, ok := parseVersion(s)
	a := Answer{State: OK, Found: s, Where: where}
	switch {
	case !ok:
		a.State = Unknown
	case older(v, oldestKernel):
		a.State, a.Found = NotSupported, s+fmt.Sprintf(": nothing was ever run below %d.%d", oldestKernel[0], oldestKernel[1])
	case older(v, wantedKernel):
		a.State = Weak
	}
	return a
}

func older(v, than [2]int) bool { return v[0] < than[0] || v[0] == than[0] && v[1] < than[1] }

// parseVersion finds the first "major.minor" in text: "6.18.4-amd64", "runc
// version 1.1.5", "systemd 252 (252.39)".
func parseVersion(text string) (v [2]int, ok bool) {
	for f := range strings.FieldsSeq(text) {
		f = strings.TrimPrefix(strings.TrimPrefix(f, "("), "v")
		major, rest, _ := strings.Cut(f, ".")
		n, err := strconv.ParseUint(major, 10, 16)
		if err != nil {
			continue
		}
		end := strings.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' })
		if end < 0 {
			end = len(rest)
		}
		m, err := strconv.ParseUint(rest[:end], 10, 16)
		if err != nil && rest != "" {
			continue
		}
		return [2]int{int(n), int(m)}, true
	}
	return v, false
}

func corePattern(_ context.Context, h Host) Answer {
	const where = "/proc/sys/kernel/core_pattern"
	s, err := h.text(where)
	if err != nil {
		return unread(where, err)
	}
	if strings.HasPrefix(s, "|") {
		return Answer{State: Weak, Found: "piped to " + strings.Fields(s + " ?")[0][1:], Where: where}
	}
	return Answer{State: OK, Found: "a file: " + s, Where: where}
}

func swap(_ context.Context, h Host) Answer {
	const where = "/proc/swaps"
	s, err := h.text(where)
	if absent(err) {
		return Answer{State: OK, Found: "none: this kernel has no swap", Where: where}
	}
	if err != nil {
		return unread(where, err)
	}
	memory, disk := parseSwaps(s)
	switch {
	case len(disk) > 0:
		return Answer{State: Weak, Found: "on " + strings.Join(disk, ", ") + "; whether it is encrypted cannot be seen", Where: where}
	case len(memory) > 0:
		return Answer{State: OK, Found: "in memory only: " + strings.Join(memory, ", "), Where: where}
	}
	return Answer{State: OK, Found: "none", Where: where}
}

// parseSwaps reads /proc/swaps: a heading, then a line per area.
func parseSwaps(text string) (memory, disk []string) {
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) < 2 {
			continue
		}
		if strings.HasPrefix(f[0], "/dev/zram") {
			memory = append(memory, f[0])
		} else {
			disk = append(disk, f[0])
		}
	}
	return memory, disk
}

// builtIn is a time that has surely passed: a clock before it was never set.
var builtIn = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func clock(_ context.Context, h Host) Answer {
	const where = "adjtimex(2)"
	now, synchronised, err := h.Kernel.Clock()
	switch {
	case err != nil:
		return unread(where, err)
	case now.Before(builtIn):
		return Answer{State: Missing, Found: "it says " + now.UTC().Format(time.DateOnly) + ", which is past", Where: where, Mend: "set it (timedatectl set-time), then keep it: apt install systemd-timesyncd"}
	case !synchronised:
		return Answer{State: Weak, Found: "set, but nothing keeps it right", Where: where}
	}
	return Answer{State: OK, Found: "kept by a time service", Where: where}
}

// What a host should have left for agents' work.
const (
	wantedBytes  = 2 << 30
	wantedInodes = 100_000
)

func disk(_ context.Context, h Host) Answer {
	where := h.Layout.State
	for !h.exists(where) && where != "/" {
		where = path.Dir(where)
	}
	s, err := h.Kernel.Space(where)
	where = "statfs " + where
	if err != nil {
		return unread(where, err)
	}
	a := Answer{State: OK, Where: where, Found: fmt.Sprintf("%.1f of %.1f GiB free", float64(s.FreeBytes)/(1<<30), float64(s.Bytes)/(1<<30))}
	if s.Inodes > 0 {
		a.Found += fmt.Sprintf(", %d of %d inodes", s.FreeInodes, s.Inodes)
	}
	switch {
	case s.FreeBytes == 0 || s.Inodes > 0 && s.FreeInodes == 0:
		a.State = Missing
	case s.FreeBytes < wantedBytes || s.Inodes > 0 && s.FreeInodes < wantedInodes:
		a.State = Weak
	}
	return a
}
