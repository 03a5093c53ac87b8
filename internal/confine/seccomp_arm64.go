package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	hasX32    = false
)

// archCalls exist on arm64 only.
var archCalls = []uint32{}

var archRefused = []uint32{}

// ociArch is the architecture's name in an OCI seccomp profile.
const ociArch = "SCMP_ARCH_AARCH64"

// archNames are the calls of this architecture alone, see [commonNames].
var archNames = map[uint32]string{}
