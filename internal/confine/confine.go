// Package confine is the hardening profile, whole and in one place: what the
// kernel takes away from a process just before it becomes a container's first
// process.
//
// A [Profile] belongs to an engine.Role. It is written into the script that the
// cell engine's child carries out before it execs (internal/forked), in this
// order: resource limits, AppArmor (at the exec), bounding set, user id, no_new_privs, Landlock,
// seccomp, capabilities. What the kernel shows of it is read back by the child
// itself, which goes no further when it is not what the profile says.
//
// Kept here: seccomp (an allowlist of our own), Landlock, capabilities,
// no_new_privs, resource limits, the change to an AppArmor profile (which
// internal/host/apparmor makes and loads). Not kept here: namespaces and mounts
// (internal/engine/cell), control groups (internal/cgroup).
//
// Landlock is strict. When the kernel lacks what the profile needs, [Check]
// says so with a deny.Reason, and only a Spec whose operator accepted it runs
// with less; the ABI that is in force is always reported.
package confine

import (
	"bulkhead/internal/engine"
)

// Profile is what one container's processes keep.
type Profile struct {
	Role engine.Role `json:"role"`

	Seccomp    bool `json:"seccomp"`    // the role's filter
	Landlock   bool `json:"landlock"`   // the role's rule set
	DropCaps   bool `json:"dropCaps"`   // every capability, from every set
	NoNewPrivs bool `json:"noNewPrivs"` // prctl(2) PR_SET_NO_NEW_PRIVS

	// AppArmor is the profile that the exec changes to; empty for none.
	AppArmor string `json:"appArmor,omitempty"`

	NoFile uint64 `json:"noFile"` // RLIMIT_NOFILE, soft and hard; zero leaves it as it is
	Core   uint64 `json:"core"`   // RLIMIT_CORE, soft and hard
	// FileSize is RLIMIT_FSIZE, soft and hard; zero leaves it as it is.
	FileSize uint64 `json:"fileSize,omitempty"`

	Writable     []string `json:"writable,omitempty"`     // folders and files that Landlock lets it write
	AcceptWeaker bool     `json:"acceptWeaker,omitempty"` // the operator accepted an older Landlock, or none
}

// maxPrinted bounds the one file that a dialer or resolver can write, its log,
// which nobody rotates under it.
const maxPrinted = 8 << 20

// For gives the profile of a Spec. Mechanisms in Spec.Off are left out: only
// decoys may have any, which the engine checks.
func For(s *engine.Spec) Profile {
	l := s.Limits.WithDefaults()
	p := Profile{
		Role: s.Role, NoFile: l.NoFile, Core: l.CoreBytes, FileSize: l.FileBytes,
		Seccomp: s.Has(engine.MechSeccomp), Landlock: s.Has(engine.MechLandlock),
		DropCaps: s.Has(engine.MechCaps), NoNewPrivs: s.Has(engine.MechNoNewPrivs),
		AcceptWeaker: s.Accepts(engine.MechLandlock), AppArmor: s.AppArmor,
	}
	if !s.Has(engine.MechLimits) {
		p.NoFile = 0
	}
	if s.Role == engine.RoleDialer || s.Role == engine.RoleResolver {
		p.FileSize = maxPrinted
	}
	for _, m := range s.Mounts {
		if m.Writable {
			p.Writable = append(p.Writable, m.Target)
		}
	}
	return p
}
