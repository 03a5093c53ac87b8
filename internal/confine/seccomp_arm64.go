package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	hasX32    = false
)

// archCalls exist on arm64 only.
var archCalls = []uint32{}

var archRefused = []uint32{}
