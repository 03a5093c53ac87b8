package confine

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// The parts of an OCI seccomp profile that we use, in the form that Podman
// reads (github.com/containers/common, pkg/seccomp).
type (
	ociProfile struct {
		DefaultAction   string    `json:"defaultAction"`
		DefaultErrnoRet uint      `json:"defaultErrnoRet"`
		DefaultErrno    string    `json:"defaultErrno"`
		Architectures   []string  `json:"architectures"`
		Syscalls        []ociRule `json:"syscalls"`
	}
	// ociRule answers some calls. All of Args must hold; rules of the same call
	// are alternatives.
	ociRule struct {
		Names    []string `json:"names"`
		Action   string   `json:"action"`
		ErrnoRet *uint    `json:"errnoRet,omitempty"`
		Args     []ociArg `json:"args,omitempty"`
	}
	// ociArg holds when (argument & Value) == ValueTwo.
	ociArg struct {
		Index    uint   `json:"index"`
		Value    uint64 `json:"value"`
		ValueTwo uint64 `json:"valueTwo"`
		Op       string `json:"op"`
	}
)

const (
	ociAllow    = "SCMP_ACT_ALLOW"
	ociErrno    = "SCMP_ACT_ERRNO"
	ociMaskedEq = "SCMP_CMP_MASKED_EQ"
)

// low is all that the kernel reads of an int argument: comparing 64 bits would
// be passed by setting a high one.
const low = 0xffffffff

// masked is a condition on some bits of an argument.
func masked(index uint, mask, value uint32) ociArg {
	return ociArg{Index: index, Value: uint64(mask), ValueTwo: uint64(value), Op: ociMaskedEq}
}

func is(index uint, value uint32) ociArg { return masked(index, low, value) }

// OCIProfile gives the filter of a role in the form that an OCI runtime takes,
// made from the same tables as [ForRole]. Which calls go through is the same;
// which error a refused one gets may differ (an OCI profile has one default),
// which nobody sees, because the second stage puts the filter of ForRole on
// top before it runs anything.
func OCIProfile(r engine.Role) ([]byte, error) {
	a := native()
	p := ociProfile{
		DefaultAction: ociErrno, DefaultErrnoRet: uint(unix.ENOSYS), DefaultErrno: "ENOSYS", Architectures: []string{a.oci},
	}
	plain := map[string]bool{}
	for _, n := range slices.Concat(commonCalls, a.calls) {
		plain[n] = true
	}
	refused := slices.Concat(refusedCalls, a.refused)
	if ours(r) {
		refused = append(refused, "listen")
		if r != engine.RoleResolver {
			refused = append(refused, "bind")
		}
	}
	for _, n := range refused {
		delete(plain, n)
	}
	allowed := make([]string, 0, len(plain))
	for n := range plain {
		allowed = append(allowed, n)
	}
	slices.Sort(allowed)
	slices.Sort(refused)
	eperm, enosys := uint(unix.EPERM), uint(unix.ENOSYS)
	p.Syscalls = append(
		p.Syscalls, ociRule{Names: allowed, Action: ociAllow},
		ociRule{Names: slices.Compact(refused), Action: ociErrno, ErrnoRet: &eperm},
		ociRule{Names: []string{"clone3"}, Action: ociErrno, ErrnoRet: &enosys},
	)
	allow := func(name string, args ...ociArg) {
		p.Syscalls = append(p.Syscalls, ociRule{Names: []string{name}, Action: ociAllow, Args: args})
	}
	allow("socket", is(0, unix.AF_UNIX))
	for _, family := range []uint32{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range inetTypes {
			for _, protocol := range inetProtocols {
				allow("socket", is(0, family), masked(1, typeMask, kind), is(2, protocol))
			}
		}
	}
	if r != engine.RoleDialer && r != engine.RoleResolver && r != engine.RoleAdapter && r != engine.RoleService {
		allow("socket", is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE))
	}
	allow("socketpair", is(0, unix.AF_UNIX))
	allow("clone", masked(0, namespaceFlags, 0))
	for _, v := range personalities {
		allow("personality", is(0, v))
	}
	for _, a := range noneOf(1, tiocsti, tioclinux) {
		allow("ioctl", a)
	}
	out, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return nil, fmt.Errorf("confine: OCI profile: %w", err)
	}
	return out, nil
}

// noneOf gives alternatives, one of which holds exactly when the low 32 bits
// of an argument are neither x nor y. An OCI rule can only ask whether bits
// are equal, and two questions about the same argument become alternatives in
// runc, so "not equal, twice" cannot be written down directly.
func noneOf(index uint, x, y uint32) []ociArg {
	var out []ociArg
	apart := x ^ y
	// Some bit in which x and y agree is another one.
	for b := range 32 {
		if bit := uint32(1) << b; apart&bit == 0 {
			out = append(out, masked(index, bit, ^x&bit))
		}
	}
	// Or the bits in which they differ are neither x's nor y's.
	for v := range uint32(1) << bits.OnesCount32(apart) {
		if s := spread(v, apart); s != x&apart && s != y&apart {
			out = append(out, masked(index, apart, s))
		}
	}
	return out
}

// spread puts the low bits of v where mask has ones.
func spread(v, mask uint32) uint32 {
	var out uint32
	for b := range 32 {
		if bit := uint32(1) << b; mask&bit != 0 {
			if v&1 != 0 {
				out |= bit
			}
			v >>= 1
		}
	}
	return out
}
