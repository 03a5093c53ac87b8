package confine

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bulkhead/internal/engine"
)

var roles = []engine.Role{engine.RoleRuntime, engine.RoleRun, engine.RoleGateway, engine.RoleDialer, engine.RoleResolver, engine.RoleAdapter, engine.RoleService}

// machine evaluates a filter as the kernel would.
type machine struct {
	t  testing.TB
	vm *bpf.VM
}

func newMachine(t testing.TB, f *Filter) *machine {
	t.Helper()
	ins, ok := bpf.Disassemble(f.Raw())
	if !ok {
		t.Fatal("the filter does not disassemble")
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{t, vm}
}

func forRole(t testing.TB, r engine.Role) *machine {
	t.Helper()
	f, err := ForRole(r)
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t, f)
}

// call gives the filter's answer. The machine loads words as big-endian
// numbers from a packet, so each 32-bit word of seccomp_data is laid down so;
// of a 64-bit argument the low word comes first, as on our architectures.
func (m *machine) call(arch, nr uint32, args ...uint64) uint32 {
	var b [64]byte
	binary.BigEndian.PutUint32(b[0:], nr)
	binary.BigEndian.PutUint32(b[4:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(b[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(b[20+8*i:], uint32(a>>32))
	}
	got, err := m.vm.Run(b[:])
	if err != nil {
		m.t.Fatal(err)
	}
	return uint32(got)
}

func no(e unix.Errno) uint32 { return retErrno | uint32(e) }

// forArch compiles a role's filter for any architecture, this one or not.
func forArch(t testing.TB, r engine.Role, a architecture) *machine {
	t.Helper()
	f, err := compile(rulesFor(r, a))
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t, f)
}

// filter is one of all that are ever compiled for a role.
type filter struct {
	a architecture
	r engine.Role
}

func everyFilter() (all []filter) {
	for _, a := range architectures {
		for _, r := range roles {
			all = append(all, filter{a, r})
		}
	}
	return all
}

func TestEveryCallNumberIsAllowedOnlyWhenListed(t *testing.T) {
	for _, a := range architectures {
		for _, r := range roles {
			m := forArch(t, r, a)
			want := map[uint32]bool{}
			for _, name := range slices.Concat(commonCalls, a.calls) {
				want[a.nr(name)] = true
			}
			conditional := map[uint32]bool{}
			for _, name := range []string{"socket", "socketpair", "clone", "ioctl", "personality"} {
				conditional[a.nr(name)] = true
			}
			refused := map[uint32]bool{}
			for _, name := range slices.Concat(refusedCalls, a.refused) {
				refused[a.nr(name)] = true
			}
			if ours(r) {
				refused[a.nr("listen")] = true
			}
			if ours(r) && r != engine.RoleResolver {
				refused[a.nr("bind")] = true
			}
			for nr := range uint32(2048) {
				got := m.call(a.audit, nr, 0, 0, 0, 0, 0, 0)
				switch {
				case conditional[nr]:
				case refused[nr]:
					if got != no(unix.EPERM) {
						t.Errorf("%s, %s: refused call %d answers %#x", a.name, r, nr, got)
					}
				case want[nr]:
					if got != retAllow {
						t.Errorf("%s, %s: listed call %d answers %#x", a.name, r, nr, got)
					}
				default:
					if got != no(unix.ENOSYS) {
						t.Errorf("%s, %s: call %d, which is not listed, answers %#x", a.name, r, nr, got)
					}
				}
			}
		}
		for name, rules := range map[string]rules{"cell": cellRules(a, false), "seal": sealRules(a)} {
			if _, err := compile(rules); err != nil {
				t.Errorf("%s, %s: %v", a.name, name, err)
			}
		}
	}
}

// TestNumbersAreThoseOfTheKernel compares with golang.org/x/sys/unix, which is
// generated from the kernel's headers, for both architectures.
func TestNumbersAreThoseOfTheKernel(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	constant := regexp.MustCompile(`(?m)^\tSYS_(\w+)\s+= (\d+)$`)
	for _, a := range architectures {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+a.name+".go"))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, m := range constant.FindAllStringSubmatch(string(text), -1) {
			want[strings.ToLower(m[1])] = m[2]
		}
		for i, n := range numbers {
			if i > 0 && numbers[i-1].name >= n.name {
				t.Errorf("%s is not in its place", n.name)
			}
			have := n.amd64
			if a.name == "arm64" {
				have = n.arm64
			}
			w, ok := want[n.name]
			if !ok {
				w = "-1"
			}
			if w != strconv.Itoa(int(have)) {
				t.Errorf("%s: %s is %d, want %s", a.name, n.name, have, w)
			}
		}
	}
}

func TestNoListNamesACallTwiceOrRefusesWhatItAllows(t *testing.T) {
	for _, a := range architectures {
		seen := map[uint32]string{}
		for name, list := range map[string][]string{"common": commonCalls, "arch": a.calls, "refused": slices.Concat(refusedCalls, a.refused)} {
			for _, call := range list {
				nr := a.nr(call)
				if in, ok := seen[nr]; ok {
					t.Errorf("%s: %s is in %s and in %s", a.name, call, in, name)
				}
				seen[nr] = name
			}
		}
	}
}

func TestEscapesAreNotAllowed(t *testing.T) {
	escapes := []string{
		"unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "ptrace", "process_vm_readv", "process_vm_writev",
		"pidfd_getfd", "open_by_handle_at", "name_to_handle_at", "open_tree", "move_mount", "fsopen", "fsmount",
		"mount_setattr", "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup",
		"io_uring_enter", "io_uring_register", "kexec_load", "init_module", "finit_module", "delete_module", "quotactl",
		"clone3", "reboot", "swapon", "acct", "syslog",
	}
	for _, a := range architectures {
		for _, r := range roles {
			m := forArch(t, r, a)
			for _, name := range escapes {
				if got := m.call(a.audit, a.nr(name)); got == retAllow {
					t.Errorf("%s, %s: %s is allowed", a.name, r, name)
				}
			}
			if got := m.call(a.audit, a.nr("clone3")); got != no(unix.ENOSYS) {
				t.Errorf("%s, %s: clone3 answers %#x: C libraries fall back on ENOSYS only", a.name, r, got)
			}
		}
	}
}

func TestForeignArchitecturesAreKilled(t *testing.T) {
	for _, a := range architectures {
		for _, r := range roles {
			m := forArch(t, r, a)
			for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_RISCV64, 0, ^uint32(0)} {
				if got := m.call(arch, a.nr("read")); arch != a.audit && got != retKillProcess {
					t.Errorf("%s, %s: architecture %#x answers %#x", a.name, r, arch, got)
				}
			}
			for nr := range uint32(1024) {
				want := no(unix.ENOSYS) // no such number on arm64
				if a.x32 {
					want = retKillProcess
				}
				if got := m.call(a.audit, nr|x32Bit); got != want {
					t.Errorf("%s, %s: x32 call %d answers %#x", a.name, r, nr, got)
				}
			}
		}
	}
}

// TestSocketFamilies looks at both halves of each argument: the kernel takes
// the low 32 bits, so must the filter.
func TestSocketFamilies(t *testing.T) {
	for _, c := range everyFilter() {
		a, r := c.a, c.r
		m := forArch(t, r, a)
		rapid.Check(t, func(rt *rapid.T) {
			family, protocol := rapid.Uint32Range(0, 64).Draw(rt, "family"), rapid.OneOf(rapid.Uint32Range(0, 300), rapid.Uint32()).Draw(rt, "protocol")
			high := func(v uint32) uint64 { return uint64(v) | uint64(rapid.Uint32().Draw(rt, "high"))<<32 }
			kind, flags := rapid.Uint32Range(0, 15).Draw(rt, "type"), rapid.SampledFrom([]uint32{0, unix.SOCK_CLOEXEC, unix.SOCK_NONBLOCK, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 0xfffffff0}).Draw(rt, "flags")
			got := m.call(a.audit, a.nr("socket"), high(family), high(kind|flags), high(protocol))
			ip := family == unix.AF_INET || family == unix.AF_INET6
			route := family == unix.AF_NETLINK && r != engine.RoleDialer && r != engine.RoleResolver && r != engine.RoleAdapter && r != engine.RoleService
			want := no(unix.EAFNOSUPPORT)
			switch {
			case ip && kind != unix.SOCK_STREAM && kind != unix.SOCK_DGRAM:
				want = no(unix.EPERM)
			case family == unix.AF_UNIX, ip && (protocol == 0 || protocol == 6 || protocol == 17), route && protocol == 0:
				want = retAllow
			case ip, route:
				want = no(unix.EPROTONOSUPPORT)
			}
			if got != want {
				rt.Errorf("%s, %s: socket(%d, %#x, %d) answers %#x, want %#x", a.name, r, family, kind|flags, protocol, got, want)
			}
			got = m.call(a.audit, a.nr("socketpair"), high(family))
			if (got == retAllow) != (family == unix.AF_UNIX) {
				rt.Errorf("%s, %s: socketpair(%d) answers %#x", a.name, r, family, got)
			}
		})
		if got := m.call(a.audit, a.nr("socket"), 0x100000028, unix.SOCK_STREAM, 0); got == retAllow {
			t.Errorf("%s, %s: AF_VSOCK with a high bit passes", a.name, r)
		}
		// Kinds of socket that no family or protocol gives away, and pings.
		for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
			for what, got := range map[string]uint32{
				"SOCK_PACKET, which is AF_PACKET":  m.call(a.audit, a.nr("socket"), family, unix.SOCK_PACKET|unix.SOCK_CLOEXEC, 0),
				"SOCK_DCCP":                        m.call(a.audit, a.nr("socket"), family, unix.SOCK_DCCP, 0),
				"SOCK_SEQPACKET, which is SCTP":    m.call(a.audit, a.nr("socket"), family, unix.SOCK_SEQPACKET, 0),
				"SOCK_RAW for TCP":                 m.call(a.audit, a.nr("socket"), family, unix.SOCK_RAW, unix.IPPROTO_TCP),
				"SOCK_DGRAM for ICMP":              m.call(a.audit, a.nr("socket"), family, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
				"SOCK_DGRAM for ICMPv6, non-block": m.call(a.audit, a.nr("socket"), family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6),
			} {
				if got == retAllow {
					t.Errorf("%s, %s: family %d with %s passes", a.name, r, family, what)
				}
			}
		}
	}
}

func TestArgumentsOfCloneIoctlPersonality(t *testing.T) {
	for _, c := range everyFilter() {
		a, r := c.a, c.r
		m := forArch(t, r, a)
		rapid.Check(t, func(rt *rapid.T) {
			v := rapid.Uint64().Draw(rt, "argument")
			got := m.call(a.audit, a.nr("clone"), v)
			if (got == retAllow) != (uint32(v)&namespaceFlags == 0) {
				rt.Errorf("%s, %s: clone(%#x) answers %#x", a.name, r, v, got)
			}
			high := uint64(rapid.Uint32().Draw(rt, "high")) << 32
			for _, cmd := range []uint64{tiocsti, tioclinux} {
				if got := m.call(a.audit, a.nr("ioctl"), v, cmd|high); got != no(unix.EPERM) {
					rt.Errorf("%s, %s: ioctl(_, %#x) answers %#x", a.name, r, cmd|high, got)
				}
			}
			if uint32(v) != tiocsti && uint32(v) != tioclinux && m.call(a.audit, a.nr("ioctl"), 0, v) != retAllow {
				rt.Errorf("%s, %s: ioctl(_, %#x) is refused", a.name, r, v)
			}
			const randomize = 0x0040000
			if got := m.call(a.audit, a.nr("personality"), randomize|high); got != no(unix.EPERM) {
				rt.Errorf("%s, %s: personality(ADDR_NO_RANDOMIZE) answers %#x", a.name, r, got)
			}
			if got := m.call(a.audit, a.nr("personality"), 0xffffffff|high); got != retAllow {
				rt.Errorf("%s, %s: asking for the personality answers %#x", a.name, r, got)
			}
		})
	}
}

// TestCompilerAgainstItsRules compiles rules of any shape and compares every
// answer with what the rules say.
func TestCompilerAgainstItsRules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rules{arch: native().audit, x32: true, otherwise: ret(retErrno | 99), calls: map[uint32]block{}}
		for _, nr := range rapid.SliceOfN(rapid.Uint32Range(0, 2000), 0, 900).Draw(rt, "numbers") {
			r.calls[nr] = ret(retErrno | nr%7)
		}
		f, err := compile(r)
		if err != nil {
			rt.Fatal(err)
		}
		m := newMachine(t, f)
		for nr := range uint32(2100) {
			want := uint32(retErrno | 99)
			if _, ok := r.calls[nr]; ok {
				want = retErrno | nr%7
			}
			if got := m.call(native().audit, nr); got != want {
				rt.Fatalf("call %d answers %#x, want %#x", nr, got, want)
			}
		}
		if got := m.call(native().audit, x32Bit); got != retKillProcess {
			rt.Fatalf("x32 answers %#x", got)
		}
	})
}

func TestSealRefusesExecAlone(t *testing.T) {
	f, err := compile(sealRules(native()))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, f)
	for nr := range uint32(600) {
		want := uint32(retAllow)
		if nr == unix.SYS_EXECVE || nr == unix.SYS_EXECVEAT {
			want = no(unix.EPERM)
		}
		if got := m.call(native().audit, nr); got != want {
			t.Errorf("call %d answers %#x", nr, got)
		}
	}
}

func FuzzFilterNeverAllowsAForeignFamily(f *testing.F) {
	f.Add(uint64(0x100000028), uint64(0))
	f.Add(uint64(unix.AF_PACKET), uint64(3))
	f.Fuzz(func(t *testing.T, family, protocol uint64) {
		got := forRole(t, engine.RoleRuntime).call(native().audit, unix.SYS_SOCKET, family, 1, protocol)
		switch uint32(family) {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
		default:
			if got == retAllow {
				t.Errorf("socket(%#x) is allowed", family)
			}
		}
	})
}
