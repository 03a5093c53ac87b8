package confine

import (
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
)

// WantedABI is the Landlock ABI that the profile needs: 6 brought scopes for
// abstract sockets and signals (Linux 6.12; Documentation/userspace-api/landlock.rst).
const WantedABI = 6

// Rights by the ABI that brought them.
const (
	fsRead  = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir
	fsWrite = ll.AccessFSWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir |
		ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym
	fsNever = ll.AccessFSMakeChar | ll.AccessFSMakeBlock // nobody makes device nodes
	fsFile  = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev
)

// LandlockABI asks the kernel; 0 means that it has no Landlock, or has it
// switched off.
func LandlockABI() int {
	v, err := ll.LandlockGetABIVersion()
	if err != nil || v < 0 {
		return 0
	}
	return v
}

// Check says whether this kernel can keep the profile. The error is a
// *deny.Reason with code host.missing_feature.
func (p Profile) Check() error {
	if !p.Landlock {
		return nil
	}
	return checkABI(LandlockABI(), p.AcceptWeaker)
}

func checkABI(abi int, accepted bool) error {
	if abi >= WantedABI || accepted {
		return nil
	}
	why := fmt.Sprintf("the kernel offers Landlock ABI %d, the profile needs %d (Linux 6.12)", abi, WantedABI)
	if abi == 0 {
		why = "this kernel has no Landlock, or it is switched off"
	}
	return &deny.Reason{
		Layer: deny.LayerPod, Code: deny.MissingFeature, What: "start a container with Landlock", Why: why,
		Mend: "boot a kernel from 6.12 on with landlock in its lsm= list, or accept it with --accept-missing pod",
	}
}

// rights is what an ABI can express.
type rights struct {
	abi          int
	fs           landlock.AccessFSSet
	refer, ioctl landlock.AccessFSSet // zero below ABI 2 and 5
	truncate     landlock.AccessFSSet // zero below ABI 3
	net          landlock.AccessNetSet
	scope        landlock.ScopedSet
}

func rightsOf(abi int, role engine.Role) rights {
	r := rights{abi: abi, fs: fsRead | fsWrite | fsNever}
	if abi >= 2 {
		r.refer = ll.AccessFSRefer
	}
	if abi >= 3 {
		r.truncate = ll.AccessFSTruncate
	}
	if abi >= 4 {
		switch role {
		case engine.RoleGateway: // connections come from the dialer, listeners are passed in
			r.net = ll.AccessNetConnectTCP | ll.AccessNetBindTCP
		case engine.RoleDialer, engine.RoleResolver:
			r.net = ll.AccessNetBindTCP
		}
	}
	if abi >= 5 {
		r.ioctl = ll.AccessFSIoctlDev
	}
	if abi >= 6 {
		r.scope = ll.ScopeAbstractUnixSocket | ll.ScopeSignal
	}
	r.fs |= r.refer | r.truncate | r.ioctl
	return r
}

// restrict applies the rule set to the calling thread and gives the ABI in
// force. Paths are those of the final root.
func (p Profile) restrict() (int, error) {
	abi := LandlockABI()
	if err := checkABI(abi, p.AcceptWeaker); err != nil {
		return 0, err
	}
	if abi == 0 {
		return 0, nil // accepted, and reported as 0
	}
	abi = min(abi, WantedABI)
	r := rightsOf(abi, p.Role)
	cfg := landlock.Config{HandledAccessFS: r.fs, HandledAccessNet: r.net, Scoped: r.scope}
	rules, err := p.paths(r)
	if err != nil {
		return 0, err
	}
	fd, flags, err := cfg.NewRulesetFD(rules...)
	if err != nil {
		return 0, fmt.Errorf("confine: landlock rules: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// By hand and not through the library's Restrict: this thread execs, and
	// the others end with that.
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), uintptr(flags), 0); e != 0 { // #nosec G115 -- a descriptor
		return 0, fmt.Errorf("confine: landlock_restrict_self: %w", e)
	}
	return abi, nil
}

// paths lists what may be reached: everything to read and run, devices to
// use, and the writable places.
func (p Profile) paths(r rights) ([]landlock.Rule, error) {
	rules := []landlock.Rule{
		landlock.PathAccess(fsRead, "/"),
		landlock.PathAccess((ll.AccessFSWriteFile|ll.AccessFSReadFile)|r.truncate|r.ioctl, "/dev").IgnoreIfMissing(),
		landlock.PathAccess((fsRead|fsWrite)|r.refer|r.truncate, "/dev/shm").IgnoreIfMissing(),
	}
	for _, w := range p.Writable {
		st, err := os.Stat(w)
		if err != nil {
			return nil, fmt.Errorf("confine: landlock rule for %s: %w", w, err)
		}
		allow := (fsRead | fsWrite) | r.refer | r.truncate
		if !st.IsDir() {
			allow &= fsFile
		}
		rules = append(rules, landlock.PathAccess(allow, w))
	}
	return rules, nil
}
