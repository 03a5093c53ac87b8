package confine

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/forked"
)

// Result is what is in force: a child whose script ran to its end has read it
// back where the kernel lets one read it.
type Result struct {
	Landlock int `json:"landlock"` // ABI in force, 0: none
	Seccomp  int `json:"seccomp"`  // instructions of the filter, 0: none
}

// Identity is the user that a process becomes; nil in [Profile.Write] keeps
// the present one (inside a user namespace it was set already).
type Identity struct {
	ID uint32 // user and group alike
}

// Write adds to s what confines the child. held are its capabilities when it starts;
// rules is the profile's Landlock rule set, as made by [Profile.Rules], with the
// descriptor that it has in the child. The child must see procfs on /proc.
func (p Profile) Write(s *forked.Script, become *Identity, held Caps, rules Rules) (Result, error) {
	out := Result{Landlock: rules.ABI}
	p.writeLimits(s)
	p.writeAppArmor(s)
	if p.DropCaps {
		// So that no exec can give anything back.
		for c := range lastCap() + 1 {
			if held.Bounding&(1<<c) != 0 {
				s.Call(fmt.Sprintf("drop capability %d from the bounding set", c), unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
			}
		}
	}
	if become != nil {
		WriteIdentity(s, become.ID, held.Permitted)
	}
	if p.NoNewPrivs {
		s.Call("set no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if rules.ABI > 0 {
		s.Call("apply the Landlock rules", unix.SYS_LANDLOCK_RESTRICT_SELF, rules.FD, rules.Flags)
	}
	// Without no_new_privs (a decoy) the filter needs CAP_SYS_ADMIN, so it is
	// installed before the capabilities go; the filter allows what follows.
	if p.Seccomp {
		f, err := ForRole(p.Role)
		if err != nil {
			return out, err
		}
		f.write(s)
		out.Seccomp = f.Len()
	}
	if p.DropCaps {
		s.Call("clear ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
		writeCaps(s, "drop all capabilities", 0, 0)
	} else {
		writeKept(s, held.Permitted)
	}
	p.writeReadBack(s)
	return out, nil
}

// Apply confines the calling thread by the same script. The thread must be
// locked to its goroutine and exec right after: other threads are not confined.
func (p Profile) Apply() (Result, error) {
	// The library's form, which tells the Go runtime not to put the old limit
	// back at exec.
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: p.NoFile, Max: p.NoFile}); err != nil {
		return Result{}, fmt.Errorf("confine: RLIMIT_NOFILE %d: %w", p.NoFile, err)
	}
	rules, err := p.Rules()
	if err != nil {
		return Result{}, err
	}
	if rules.FD >= 0 {
		defer func() { _ = unix.Close(rules.FD) }()
	}
	held, err := Held()
	if err != nil {
		return Result{}, err
	}
	s := &forked.Script{}
	out, err := p.Write(s, nil, held, rules)
	if err != nil {
		return Result{}, err
	}
	if err := s.Perform(); err != nil {
		return Result{}, fmt.Errorf("confine: %w", err)
	}
	return out, nil
}

// WriteIdentity gives up root for good: saved ids included, and no other group.
// Capabilities stay until they are dropped by name, so that the steps that need
// them can follow.
func WriteIdentity(s *forked.Script, id uint32, held uint64) {
	s.Call("keep capabilities", unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
	s.Call("drop supplementary groups", unix.SYS_SETGROUPS, 0, 0)
	s.Call(fmt.Sprintf("become group %d", id), unix.SYS_SETRESGID, id, id, id)
	s.Call(fmt.Sprintf("become user %d", id), unix.SYS_SETRESUID, id, id, id)
	// The effective set is emptied by leaving user 0; take it back.
	writeCaps(s, "raise the capabilities again", held, 0)
}

// writeCaps sets effective and permitted, and inheritable.
func writeCaps(s *forked.Script, what string, held, inheritable uint64) {
	// struct __user_cap_header_struct and two of __user_cap_data_struct (capget(2)).
	head := binary.NativeEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3)
	head = append(head, 0, 0, 0, 0)
	var data []byte
	for shift := 0; shift < 64; shift += 32 {
		for _, m := range []uint64{held, held, inheritable} {
			data = binary.NativeEndian.AppendUint32(data, uint32(m>>shift)) // #nosec G115 -- the two halves
		}
	}
	s.Call(what, unix.SYS_CAPSET, head, data)
}

// writeKept makes what is permitted survive exec: for decoys alone.
func writeKept(s *forked.Script, held uint64) {
	writeCaps(s, "make capabilities inheritable", held, held)
	for c := range lastCap() + 1 {
		if held&(1<<c) != 0 {
			s.Call(fmt.Sprintf("raise ambient capability %d", c), unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0)
		}
	}
}

// writeAppArmor asks for the profile at the exec that follows; a profile that
// the kernel does not hold is refused here. Only the thread that writes is
// meant, and only it execs. Landlock would refuse the write later on.
func (p Profile) writeAppArmor(s *forked.Script) {
	if p.AppArmor == "" {
		return
	}
	fd, word := &forked.Var{}, []byte("exec "+p.AppArmor)
	s.Call("open /proc/thread-self/attr/apparmor/exec", unix.SYS_OPENAT, unix.AT_FDCWD, "/proc/thread-self/attr/apparmor/exec", unix.O_WRONLY|unix.O_CLOEXEC, 0, forked.Save(fd))
	s.Call("change to the AppArmor profile "+p.AppArmor, unix.SYS_WRITE, fd, word, len(word))
	s.Call("close the attribute", unix.SYS_CLOSE, fd)
}

func (p Profile) writeLimits(s *forked.Script) {
	type one struct {
		what string
		id   int
		max  uint64
	}
	all := []one{{"RLIMIT_CORE", unix.RLIMIT_CORE, p.Core}}
	if p.NoFile > 0 {
		all = append(all, one{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, p.NoFile})
	}
	if p.FileSize > 0 {
		all = append(all, one{"RLIMIT_FSIZE", unix.RLIMIT_FSIZE, p.FileSize})
	}
	for _, l := range all {
		limit := &unix.Rlimit{Cur: l.max, Max: l.max}
		s.Call(fmt.Sprintf("set %s to %d", l.what, l.max), unix.SYS_PRLIMIT64, 0, l.id, unsafe.Pointer(limit), 0) // #nosec G103 -- the call's own form
	}
}

// writeReadBack reads what /proc says of the child itself and refuses to go on
// with anything but what the profile says (see [Profile.Verify]). Landlock
// cannot be read back; only attacks prove it.
func (p Profile) writeReadBack(s *forked.Script) {
	const size = 8192 // the file has about 1,500 bytes
	text, fd, n := make([]byte, size), &forked.Var{}, &forked.Var{}
	s.Call("open /proc/thread-self/status to read back", unix.SYS_OPENAT, unix.AT_FDCWD, "/proc/thread-self/status", unix.O_RDONLY|unix.O_CLOEXEC, 0, forked.Save(fd))
	s.Call("read back", unix.SYS_READ, fd, text, size, forked.Save(n), forked.AtLeast(1))
	s.Call("close what was read back", unix.SYS_CLOSE, fd)
	if p.DropCaps {
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			s.Holds("go on: read back, "+set+" is not empty", text, n, "\n"+set+":\t0000000000000000\n")
		}
	}
	if p.NoNewPrivs {
		s.Holds("go on: read back, no_new_privs is not set", text, n, "\nNoNewPrivs:\t1\n")
	}
	if p.Seccomp {
		s.Holds("go on: read back, seccomp is not in filter mode", text, n, fmt.Sprintf("\nSeccomp:\t%d\n", unix.SECCOMP_MODE_FILTER))
	}
}
