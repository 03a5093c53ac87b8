package confine

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheCellsFilterRefusesWhatReachesPastNamespacesAndLetsContainersBeMade(t *testing.T) {
	r := cellRules(native(), false)
	refuse := errno(unix.EPERM)
	for _, nr := range []uint32{unix.SYS_BPF, unix.SYS_IO_URING_SETUP, unix.SYS_KEYCTL, unix.SYS_PTRACE, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_USERFAULTFD} {
		if !slices.Equal(r.calls[nr], refuse) {
			t.Errorf("call %d is not refused", nr)
		}
	}
	for _, nr := range []uint32{unix.SYS_MOUNT, unix.SYS_UNSHARE, unix.SYS_PIVOT_ROOT, unix.SYS_CLONE, unix.SYS_EXECVE, unix.SYS_SECCOMP} {
		if b, named := r.calls[nr]; named && !slices.Equal(b, ret(retAllow)) {
			t.Errorf("call %d is refused: no container could be made", nr)
		}
	}
	if !slices.Equal(r.otherwise, ret(retAllow)) {
		t.Error("an unnamed call is refused")
	}
	f, err := compile(r)
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, f)
	for what, tc := range map[string]struct {
		args    []uint64
		allowed bool
	}{
		"TCP":                         {[]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP}, true},
		"UDP over IPv6":               {[]uint64{unix.AF_INET6, unix.SOCK_DGRAM, 0}, true},
		"any netlink":                 {[]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, true},
		"a unix socket":               {[]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0}, true},
		"frames, by AF_INET":          {[]uint64{unix.AF_INET, unix.SOCK_PACKET, 0}, false},
		"frames, with a high bit":     {[]uint64{unix.AF_INET, 1<<32 | unix.SOCK_PACKET, 0}, false},
		"raw":                         {[]uint64{unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6}, false},
		"a ping":                      {[]uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, false},
		"DCCP, as the type's default": {[]uint64{unix.AF_INET, unix.SOCK_DCCP, 0}, false},
		"vsock":                       {[]uint64{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, false},
	} {
		if got := m.call(native().audit, unix.SYS_SOCKET, tc.args...); (got == retAllow) != tc.allowed {
			t.Errorf("%s: socket(%#x) answers %#x", what, tc.args, got)
		}
	}
}
