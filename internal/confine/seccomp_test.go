package confine

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bulkhead/internal/engine"
)

var roles = []engine.Role{engine.RoleRuntime, engine.RoleRun, engine.RoleGateway, engine.RoleDialer, engine.RoleResolver}

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

func TestEveryCallNumberIsAllowedOnlyWhenListed(t *testing.T) {
	for _, r := range roles {
		m := forRole(t, r)
		want := map[uint32]bool{}
		for _, list := range [][]uint32{commonCalls, archCalls} {
			for _, nr := range list {
				want[nr] = true
			}
		}
		conditional := map[uint32]bool{unix.SYS_SOCKET: true, unix.SYS_SOCKETPAIR: true, unix.SYS_CLONE: true, unix.SYS_IOCTL: true, unix.SYS_PERSONALITY: true}
		refused := map[uint32]bool{}
		for _, nr := range refusedCalls {
			refused[nr] = true
		}
		if r == engine.RoleGateway || r == engine.RoleDialer || r == engine.RoleResolver {
			refused[unix.SYS_LISTEN] = true
		}
		if r == engine.RoleGateway || r == engine.RoleDialer {
			refused[unix.SYS_BIND] = true
		}
		for nr := range uint32(2048) {
			got := m.call(auditArch, nr, 0, 0, 0, 0, 0, 0)
			switch {
			case conditional[nr]:
			case refused[nr]:
				if got != no(unix.EPERM) {
					t.Errorf("%s: refused call %d answers %#x", r, nr, got)
				}
			case want[nr]:
				if got != retAllow {
					t.Errorf("%s: listed call %d answers %#x", r, nr, got)
				}
			default:
				if got != no(unix.ENOSYS) {
					t.Errorf("%s: call %d, which is not listed, answers %#x", r, nr, got)
				}
			}
		}
	}
}

func TestNoListNamesACallTwiceOrRefusesWhatItAllows(t *testing.T) {
	seen := map[uint32]string{}
	for name, list := range map[string][]uint32{"common": commonCalls, "arch": archCalls, "refused": refusedCalls} {
		for _, nr := range list {
			if in, ok := seen[nr]; ok {
				t.Errorf("call %d is in %s and in %s", nr, in, name)
			}
			seen[nr] = name
		}
	}
}

func TestEscapesAreNotAllowed(t *testing.T) {
	for _, r := range roles {
		m := forRole(t, r)
		for name, nr := range map[string]uint32{
			"unshare": unix.SYS_UNSHARE, "setns": unix.SYS_SETNS, "mount": unix.SYS_MOUNT, "umount2": unix.SYS_UMOUNT2, "pivot_root": unix.SYS_PIVOT_ROOT,
			"chroot": unix.SYS_CHROOT, "ptrace": unix.SYS_PTRACE, "process_vm_readv": unix.SYS_PROCESS_VM_READV, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV,
			"pidfd_getfd": unix.SYS_PIDFD_GETFD, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "name_to_handle_at": unix.SYS_NAME_TO_HANDLE_AT,
			"open_tree": unix.SYS_OPEN_TREE, "move_mount": unix.SYS_MOVE_MOUNT, "fsopen": unix.SYS_FSOPEN, "fsmount": unix.SYS_FSMOUNT, "mount_setattr": unix.SYS_MOUNT_SETATTR,
			"keyctl": unix.SYS_KEYCTL, "add_key": unix.SYS_ADD_KEY, "request_key": unix.SYS_REQUEST_KEY, "bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN,
			"userfaultfd": unix.SYS_USERFAULTFD, "io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER,
			"kexec_load": unix.SYS_KEXEC_LOAD, "init_module": unix.SYS_INIT_MODULE, "finit_module": unix.SYS_FINIT_MODULE, "delete_module": unix.SYS_DELETE_MODULE,
			"quotactl": unix.SYS_QUOTACTL, "clone3": unix.SYS_CLONE3, "reboot": unix.SYS_REBOOT, "swapon": unix.SYS_SWAPON, "acct": unix.SYS_ACCT, "syslog": unix.SYS_SYSLOG,
		} {
			if got := m.call(auditArch, nr); got == retAllow {
				t.Errorf("%s: %s is allowed", r, name)
			}
		}
		if got := m.call(auditArch, unix.SYS_CLONE3); got != no(unix.ENOSYS) {
			t.Errorf("%s: clone3 answers %#x: C libraries fall back on ENOSYS only", r, got)
		}
	}
}

func TestForeignArchitecturesAreKilled(t *testing.T) {
	for _, r := range roles {
		m := forRole(t, r)
		for _, arch := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_RISCV64, 0, ^uint32(0)} {
			if got := m.call(arch, unix.SYS_READ); got != retKillProcess {
				t.Errorf("%s: architecture %#x answers %#x", r, arch, got)
			}
		}
		if !hasX32 {
			continue
		}
		for nr := range uint32(1024) {
			if got := m.call(auditArch, nr|x32Bit); got != retKillProcess {
				t.Errorf("%s: x32 call %d answers %#x", r, nr, got)
			}
		}
	}
}

// TestSocketFamilies looks at both halves of each argument: the kernel takes
// the low 32 bits, so must the filter.
func TestSocketFamilies(t *testing.T) {
	for _, r := range roles {
		m := forRole(t, r)
		rapid.Check(t, func(rt *rapid.T) {
			family, protocol := rapid.Uint32Range(0, 64).Draw(rt, "family"), rapid.OneOf(rapid.Uint32Range(0, 300), rapid.Uint32()).Draw(rt, "protocol")
			high := func(v uint32) uint64 { return uint64(v) | uint64(rapid.Uint32().Draw(rt, "high"))<<32 }
			got := m.call(auditArch, unix.SYS_SOCKET, high(family), high(unix.SOCK_STREAM), high(protocol))
			ip := family == unix.AF_INET || family == unix.AF_INET6
			route := family == unix.AF_NETLINK && r != engine.RoleDialer && r != engine.RoleResolver
			want := no(unix.EAFNOSUPPORT)
			switch {
			case family == unix.AF_UNIX, ip && (protocol == 0 || protocol == 1 || protocol == 6 || protocol == 17 || protocol == 58), route && protocol == 0:
				want = retAllow
			case ip, route:
				want = no(unix.EPROTONOSUPPORT)
			}
			if got != want {
				rt.Errorf("%s: socket(%d, _, %d) answers %#x, want %#x", r, family, protocol, got, want)
			}
			got = m.call(auditArch, unix.SYS_SOCKETPAIR, high(family))
			if (got == retAllow) != (family == unix.AF_UNIX) {
				rt.Errorf("%s: socketpair(%d) answers %#x", r, family, got)
			}
		})
		if got := m.call(auditArch, unix.SYS_SOCKET, 0x100000028, unix.SOCK_STREAM, 0); got == retAllow {
			t.Errorf("%s: AF_VSOCK with a high bit passes", r)
		}
	}
}

func TestArgumentsOfCloneIoctlPersonality(t *testing.T) {
	for _, r := range roles {
		m := forRole(t, r)
		rapid.Check(t, func(rt *rapid.T) {
			v := rapid.Uint64().Draw(rt, "argument")
			got := m.call(auditArch, unix.SYS_CLONE, v)
			if (got == retAllow) != (uint32(v)&namespaceFlags == 0) {
				rt.Errorf("%s: clone(%#x) answers %#x", r, v, got)
			}
			high := uint64(rapid.Uint32().Draw(rt, "high")) << 32
			for _, cmd := range []uint64{tiocsti, tioclinux} {
				if got := m.call(auditArch, unix.SYS_IOCTL, v, cmd|high); got != no(unix.EPERM) {
					rt.Errorf("%s: ioctl(_, %#x) answers %#x", r, cmd|high, got)
				}
			}
			if uint32(v) != tiocsti && uint32(v) != tioclinux && m.call(auditArch, unix.SYS_IOCTL, 0, v) != retAllow {
				rt.Errorf("%s: ioctl(_, %#x) is refused", r, v)
			}
			const randomize = 0x0040000
			if got := m.call(auditArch, unix.SYS_PERSONALITY, randomize|high); got != no(unix.EPERM) {
				rt.Errorf("%s: personality(ADDR_NO_RANDOMIZE) answers %#x", r, got)
			}
			if got := m.call(auditArch, unix.SYS_PERSONALITY, 0xffffffff|high); got != retAllow {
				rt.Errorf("%s: asking for the personality answers %#x", r, got)
			}
		})
	}
}

// TestCompilerAgainstItsRules compiles rules of any shape and compares every
// answer with what the rules say.
func TestCompilerAgainstItsRules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rules{arch: auditArch, x32: true, otherwise: ret(retErrno | 99), calls: map[uint32]block{}}
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
			if got := m.call(auditArch, nr); got != want {
				rt.Fatalf("call %d answers %#x, want %#x", nr, got, want)
			}
		}
		if got := m.call(auditArch, x32Bit); got != retKillProcess {
			rt.Fatalf("x32 answers %#x", got)
		}
	})
}

func TestSealRefusesExecAlone(t *testing.T) {
	f, err := compile(sealRules())
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, f)
	for nr := range uint32(600) {
		want := uint32(retAllow)
		if nr == unix.SYS_EXECVE || nr == unix.SYS_EXECVEAT {
			want = no(unix.EPERM)
		}
		if got := m.call(auditArch, nr); got != want {
			t.Errorf("call %d answers %#x", nr, got)
		}
	}
}

func FuzzFilterNeverAllowsAForeignFamily(f *testing.F) {
	f.Add(uint64(0x100000028), uint64(0))
	f.Add(uint64(unix.AF_PACKET), uint64(3))
	f.Fuzz(func(t *testing.T, family, protocol uint64) {
		got := forRole(t, engine.RoleRuntime).call(auditArch, unix.SYS_SOCKET, family, 1, protocol)
		switch uint32(family) {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
		default:
			if got == retAllow {
				t.Errorf("socket(%#x) is allowed", family)
			}
		}
	})
}
