package confine

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// namespaceFlags are the clone flags that make namespaces (sched.h).
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Terminal controls that push input into a terminal as if it had been typed
// (ioctl_tty(2)); CVE-2017-5226 and CVE-2023-28100 are escapes by them.
const (
	tiocsti   = 0x5412
	tioclinux = 0x541c
)

// personalities are those that weaken nothing: query, PER_LINUX, PER_LINUX32,
// and both with UNAME26. ADDR_NO_RANDOMIZE and READ_IMPLIES_EXEC are not
// among them.
var personalities = []uint32{0, 0xffffffff, 0x8, 0x20000, 0x20008}

// inetProtocols are what IP sockets may speak: the default, TCP, UDP. MPTCP and
// SCTP are missing on purpose: Landlock judges TCP alone. ICMP is missing because
// nothing of an agent needs it: where it is, there is nobody to ping.
var inetProtocols = []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// inetTypes are the types of IP sockets. The protocol alone says too little, since
// 0 stands for the type's own: DCCP for SOCK_DCCP (CVE-2017-6074), SCTP for
// SOCK_SEQPACKET; and AF_INET with SOCK_PACKET is AF_PACKET (net/socket.c,
// __sock_create).
var inetTypes = []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}

// typeMask are the bits of a socket's type; the others are flags (SOCK_TYPE_MASK in
// include/linux/net.h).
const typeMask = 0xf

// inetBlock allows IP with [inetTypes] and [inetProtocols].
func inetBlock() block {
	kind := maskedIn(1, typeMask, inetTypes, errno(unix.EPERM)) // what the kernel says of raw sockets
	protocol := lowIn(2, inetProtocols, errno(unix.EPROTONOSUPPORT))
	return append(kind, protocol...)
}

// socketBlock allows UNIX, IP as [inetBlock] has it and, if netlink, the
// NETLINK_ROUTE protocol that getifaddrs(3) needs.
func socketBlock(netlink bool) block {
	refuse := errno(unix.EAFNOSUPPORT)
	route := refuse
	if netlink {
		route = lowIn(2, []uint32{unix.NETLINK_ROUTE}, errno(unix.EPROTONOSUPPORT))
	}
	return families(route, refuse)
}

func families(netlink, otherwise block) block {
	return dispatch(0, []choice{
		{[]uint32{unix.AF_UNIX}, ret(retAllow)},
		{[]uint32{unix.AF_INET, unix.AF_INET6}, inetBlock()},
		{[]uint32{unix.AF_NETLINK}, netlink},
	}, otherwise)
}

// choice is what happens for some values of an argument.
type choice struct {
	vals []uint32
	do   block
}

// dispatch compares the low 32 bits of argument i and goes to one of choices.
// Each test is followed by its own block, so every jump stays short.
func dispatch(i int, choices []choice, otherwise block) block {
	b := block{load(i)}
	for _, c := range choices {
		for n, v := range c.vals {
			b = append(b, equal(v, len(c.vals)-n-1+1)) // over the remaining tests and the jump
		}
		b = append(b, jump(len(c.do)))
		b = append(b, c.do...)
	}
	return append(b, otherwise...)
}

// rulesFor gives a role's rules on an architecture.
func rulesFor(r engine.Role, a architecture) rules {
	out := rules{arch: a.audit, x32: a.x32, calls: map[uint32]block{}, otherwise: errno(unix.ENOSYS)}
	for _, list := range [][]string{commonCalls, a.calls} {
		for _, name := range list {
			out.calls[a.nr(name)] = ret(retAllow)
		}
	}
	netlink := r != engine.RoleDialer && r != engine.RoleResolver && r != engine.RoleAdapter && r != engine.RoleService
	out.calls[a.nr("socket")] = socketBlock(netlink)
	out.calls[a.nr("socketpair")] = lowIn(0, []uint32{unix.AF_UNIX}, errno(unix.EAFNOSUPPORT))
	out.calls[a.nr("clone")] = lowClear(0, namespaceFlags, unix.EPERM)
	// clone3 hides its flags behind a pointer. ENOSYS makes every C library
	// fall back to clone.
	out.calls[a.nr("clone3")] = errno(unix.ENOSYS)
	out.calls[a.nr("ioctl")] = lowNotIn(1, []uint32{tiocsti, tioclinux}, unix.EPERM)
	out.calls[a.nr("personality")] = lowIn(0, personalities, errno(unix.EPERM))
	// Refusals that an operator should be able to tell from a call which this
	// kernel does not have.
	for _, list := range [][]string{refusedCalls, a.refused} {
		for _, name := range list {
			out.calls[a.nr(name)] = errno(unix.EPERM)
		}
	}
	if ours(r) {
		// Their listening sockets are passed in.
		out.calls[a.nr("listen")] = errno(unix.EPERM)
		if r != engine.RoleResolver { // UDP may need an address of its own
			out.calls[a.nr("bind")] = errno(unix.EPERM)
		}
	}
	return out
}

// ours says whether only a server of our own runs in the role.
func ours(r engine.Role) bool {
	return r == engine.RoleGateway || r == engine.RoleDialer || r == engine.RoleResolver || r == engine.RoleAdapter || r == engine.RoleService
}

// Seal gives up starting programs, for the dialer and the resolver: called by
// themselves once they run, since the exec that starts them needs the call.
func Seal() error {
	// The engine has set it already; a process that was started otherwise
	// needs it for the call, on the very thread that makes it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("confine: no_new_privs: %w", err)
	}
	f, err := compiled(filterSeal)
	if err != nil {
		return err
	}
	return f.InstallAll()
}

// sealRules allows everything but exec; the role's filter goes on judging the
// rest, and the strictest answer of all filters counts (seccomp(2)).
func sealRules(a architecture) rules {
	return rules{
		arch: a.audit, x32: a.x32, otherwise: ret(retAllow),
		calls: map[uint32]block{a.nr("execve"): errno(unix.EPERM), a.nr("execveat"): errno(unix.EPERM)},
	}
}
