package confine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Result is what is in force, read back where the kernel lets one read it.
type Result struct {
	Landlock int `json:"landlock"` // ABI in force, 0: none
	Seccomp  int `json:"seccomp"`  // instructions of the filter, 0: none
}

// Identity is the user that a process becomes; nil in [Profile.Apply] keeps
// the present one (inside a user namespace it was set already).
type Identity struct {
	ID uint32 // user and group alike
}

// Apply confines the calling thread, which must be locked to its goroutine
// and must exec right after: other threads are not confined. proc is procfs
// in the final root.
func (p Profile) Apply(become *Identity, proc string) (Result, error) {
	var out Result
	if err := p.setLimits(); err != nil {
		return out, err
	}
	if p.DropCaps {
		if err := dropBounding(); err != nil {
			return out, err
		}
	}
	if become != nil {
		if err := becomeID(become.ID); err != nil {
			return out, err
		}
	}
	if p.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return out, fmt.Errorf("confine: no_new_privs: %w", err)
		}
	}
	if p.Landlock {
		abi, err := p.restrict()
		if err != nil {
			return out, err
		}
		out.Landlock = abi
	}
	// Without no_new_privs (a decoy) the filter needs CAP_SYS_ADMIN, so it is
	// installed before the capabilities go; the filter allows what follows.
	if p.Seccomp {
		f, err := p.filter()
		if err != nil {
			return out, err
		}
		if err := f.Install(); err != nil {
			return out, err
		}
		out.Seccomp = f.Len()
	}
	var err error
	if p.DropCaps {
		err = dropCaps()
	} else {
		err = keepCaps()
	}
	if err != nil {
		return out, err
	}
	st, err := ReadStatus(proc + "/thread-self/status")
	if err != nil {
		return out, err
	}
	return out, p.Verify(st)
}

func (p Profile) filter() (*Filter, error) {
	if len(p.Program) > 0 {
		return Unmarshal(p.Program)
	}
	return ForRole(p.Role)
}

// becomeID gives up root for good: saved ids included, and no other group. Capabilities
// stay until they are dropped by name, so that the steps that need them can
// follow. Raw calls, because only this thread goes on.
func becomeID(id uint32) error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("confine: keep capabilities: %w", err)
	}
	n := uintptr(id)
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("confine: drop supplementary groups: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, n, n, n); e != 0 {
		return fmt.Errorf("confine: become group %d: %w", id, e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, n, n, n); e != 0 {
		return fmt.Errorf("confine: become user %d: %w", id, e)
	}
	// The effective set is emptied by leaving user 0; take it back.
	return raiseEffective()
}

func raiseEffective() error {
	var head unix.CapUserHeader
	head.Version = unix.LINUX_CAPABILITY_VERSION_3
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return fmt.Errorf("confine: capget: %w", err)
	}
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return fmt.Errorf("confine: capset: %w", err)
	}
	return nil
}
