package confine

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// architecture is what differs between the machines that we build for. Both
// are data in every program, so that the filters of each can be compiled and
// evaluated on either (TestEveryCallNumberIsAllowedOnlyWhenListed).
type architecture struct {
	name    string // GOARCH
	oci     string // in an OCI seccomp profile
	audit   uint32 // in struct seccomp_data
	x32     bool   // numbers with bit 30 are the x32 ABI
	calls   []string
	refused []string
}

// architectures are those that have filters. The calls of amd64 alone are older
// forms of common ones.
var architectures = []architecture{
	{
		name: "amd64", oci: "SCMP_ARCH_X86_64", audit: unix.AUDIT_ARCH_X86_64, x32: true,
		calls: []string{
			"access", "alarm", "arch_prctl", "chmod", "chown", "creat", "dup2",
			"epoll_create", "epoll_wait", "eventfd", "fork", "futimesat", "getdents",
			"getpgrp", "inotify_init", "lchown", "link", "lstat", "mkdir",
			"mknod", "open", "pause", "pipe", "poll", "readlink", "rename",
			"rmdir", "select", "signalfd", "stat", "symlink", "time", "unlink",
			"uretprobe", "utime", "utimes", "vfork",
		},
		refused: []string{
			"iopl", "ioperm", "modify_ldt",
		},
	},
	{name: "arm64", oci: "SCMP_ARCH_AARCH64", audit: unix.AUDIT_ARCH_AARCH64},
}

// native is the architecture of this program. Another one
// must not run without filters.
func native() architecture {
	for _, a := range architectures {
		if a.name == runtime.GOARCH {
			return a
		}
	}
	panic("confine: no seccomp filters for " + runtime.GOARCH)
}

// has says whether the architecture has a call of that name, and its number.
func (a architecture) has(name string) (uint32, bool) {
	i, ok := slices.BinarySearchFunc(numbers[:], name, func(n number, s string) int { return strings.Compare(n.name, s) })
	if !ok {
		return 0, false
	}
	n := numbers[i].amd64
	if a.name == "arm64" {
		n = numbers[i].arm64
	}
	return uint32(n), n >= 0 // #nosec G115 -- checked by the caller
}

// nr is the number of a call. It panics for a name that the table does not
// have, or not for this architecture: the lists are constants, and the tests
// compile every filter for every architecture.
func (a architecture) nr(name string) uint32 {
	n, ok := a.has(name)
	if !ok {
		panic(fmt.Sprintf("confine: %s has no call %q", a.name, name))
	}
	return n
}
