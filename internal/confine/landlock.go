package confine

import (
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

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
		case engine.RoleGateway, engine.RoleAdapter, engine.RoleService: // connections come from the dialer or in, listeners are passed in
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

// Rules is a Landlock rule set, ready to be applied.
type Rules struct {
	ABI   int // that it is written for; 0: there is none
	FD    int
	Flags uint32 // of landlock_restrict_self(2)
}

// None is no rule set.
func None() Rules { return Rules{FD: -1} }

// Rules makes the rule set. It is the calling thread that sees the final root:
// a rule is for the file that it finds there, not for the name, and so holds in
// every copy of that mount namespace. The caller closes FD.
func (p Profile) Rules() (Rules, error) {
	if !p.Landlock {
		return None(), nil
	}
	abi := LandlockABI()
	if err := checkABI(abi, p.AcceptWeaker); err != nil {
		return None(), err
	}
	if abi == 0 {
		return None(), nil // accepted, and reported as 0
	}
	abi = min(abi, WantedABI)
	r := rightsOf(abi, p.Role)
	cfg := landlock.Config{HandledAccessFS: r.fs, HandledAccessNet: r.net, Scoped: r.scope}
	rules, err := p.paths(r)
	if err != nil {
		return None(), err
	}
	fd, flags, err := cfg.NewRulesetFD(rules...)
	if err != nil {
		return None(), fmt.Errorf("confine: landlock rules: %w", err)
	}
	return Rules{ABI: abi, FD: fd, Flags: flags}, nil
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
