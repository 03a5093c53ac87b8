package confine

import (
	"fmt"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// builderFiles is RLIMIT_NOFILE of what makes images: package managers unpack
// many files at once.
const builderFiles = 4096

// stepCaps is what a RUN step keeps within its user namespace, where alone they
// hold: what package managers need to set owners and to become their own
// unprivileged users.
var stepCaps = []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SYS_CHROOT}

// Builder confines the whole process, which makes an image as an id that owns
// nothing: resource limits, no_new_privs, Landlock (writing below dir alone,
// or nowhere) and the runtime's filter. Unlike an agent's its Landlock is as strict as the
// kernel can, so that images can be built where agents cannot run; abi is what
// is in force. Needs a program without cgo.
func Builder(dir string) (abi int, err error) {
	if err := builderLimits(); err != nil {
		return 0, err
	}
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return 0, fmt.Errorf("confine: no_new_privs: %w", e)
	}
	if abi = min(LandlockABI(), WantedABI); abi > 0 {
		r := rightsOf(abi, engine.RoleRun)
		// No scopes: each thread gets a domain of its own, and could then not
		// signal what another one started. The PID namespace does that.
		cfg := landlock.Config{HandledAccessFS: r.fs}
		rules := []landlock.Rule{
			landlock.PathAccess(fsRead, "/"),
			landlock.PathAccess(ll.AccessFSWriteFile|ll.AccessFSReadFile|r.truncate|r.ioctl, "/dev").IgnoreIfMissing(),
		}
		if dir != "" {
			rules = append(rules, landlock.PathAccess(fsRead|fsWrite|r.refer|r.truncate, dir))
		}
		if err := cfg.Restrict(rules...); err != nil {
			return 0, fmt.Errorf("confine: landlock: %w", err)
		}
	}
	f, err := ForRole(engine.RoleRun)
	if err != nil {
		return abi, err
	}
	return abi, f.InstallAll()
}

func builderLimits() error {
	// The library's form, which tells the Go runtime not to put the old limit
	// back at exec.
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: builderFiles, Max: builderFiles}); err != nil {
		return fmt.Errorf("confine: RLIMIT_NOFILE %d: %w", builderFiles, err)
	}
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return fmt.Errorf("confine: RLIMIT_CORE: %w", err)
	}
	return nil
}

// Step confines the calling thread, which must be locked to its goroutine and
// exec right after, to what a RUN step of a Containerfile may: user 0 of a user
// namespace with a few capabilities, and the runtime's filter, in which
// chroot(2) is allowed because the step has a root of its own.
func Step() error {
	if err := builderLimits(); err != nil {
		return err
	}
	var keep uint64
	for _, c := range stepCaps {
		keep |= 1 << c
	}
	for c := range lastCap() + 1 {
		if keep&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("confine: drop capability %d from the bounding set: %w", c, err)
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{}
	for i := range data {
		half := uint32(keep >> (32 * i)) // #nosec G115 -- the two halves
		data[i] = unix.CapUserData{Effective: half, Permitted: half}
	}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return fmt.Errorf("confine: drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("confine: no_new_privs: %w", err)
	}
	a := native()
	r := rulesFor(engine.RoleRun, a)
	r.calls[a.nr("chroot")] = ret(retAllow)
	f, err := compile(r)
	if err != nil {
		return err
	}
	return f.install(0)
}
