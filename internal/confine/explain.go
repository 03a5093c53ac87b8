package confine

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// CallVerdict is what a role's filter does with one system call.
type CallVerdict struct {
	Allowed bool // whatever its arguments
	Depends bool // on its arguments
	Errno   string
	Rule    string // in words
}

// CallNames are the names that [ExplainCall] knows, sorted.
func CallNames() []string {
	var out []string
	for _, n := range numbers {
		if _, ok := native().has(n.name); ok {
			out = append(out, n.name)
		}
	}
	return out
}

// ExplainCall says what the filter of role r does with the call of that name
// on this architecture. It reads the very rules from which the filter is
// compiled. ok is false for a name that is not a system call here.
func ExplainCall(r engine.Role, name string) (v CallVerdict, ok bool) {
	a := native()
	nr, ok := a.has(name)
	if !ok {
		return CallVerdict{}, false
	}
	rules := rulesFor(r, a)
	b, named := rules.calls[nr]
	if !named {
		b = rules.otherwise
	}
	answers := map[uint32]bool{}
	for _, i := range b {
		if c, ok := i.(bpf.RetConstant); ok {
			answers[c.Val] = true
		}
	}
	for _, answer := range slices.Sorted(maps.Keys(answers)) {
		if answer&^uint32(0xffff) == retErrno {
			v.Errno = unix.ErrnoName(unix.Errno(answer & 0xffff))
		}
	}
	switch {
	case answers[retAllow] && len(answers) > 1:
		v.Depends = true
		v.Rule = fmt.Sprintf("the seccomp filter of the %s compares its arguments and refuses some with %s", r, v.Errno)
	case answers[retAllow]:
		v.Allowed = true
		v.Rule = fmt.Sprintf("it is in the seccomp allow-list of the %s", r)
	case named:
		v.Rule = fmt.Sprintf("the seccomp filter of the %s refuses it with %s", r, v.Errno)
	default:
		v.Rule = fmt.Sprintf("it is not in the seccomp allow-list of the %s, which answers %s", r, v.Errno)
	}
	return v, true
}
