package confine

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setCaps sets effective, permitted and inheritable of the calling thread.
func setCaps(mask uint64) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	lo, hi := uint32(mask), uint32(mask>>32) // #nosec G115 -- the two halves
	data := [2]unix.CapUserData{{Effective: lo, Permitted: lo, Inheritable: lo}, {Effective: hi, Permitted: hi, Inheritable: hi}}
	if _, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 { // #nosec G103 -- the call's own form
		return fmt.Errorf("confine: capset: %w", e)
	}
	return nil
}

// lastCap finds the highest capability that this kernel knows, by asking.
func lastCap() uintptr {
	c := uintptr(0)
	for {
		if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c+1, 0); e != 0 {
			return c
		}
		c++
	}
}

// AllCaps is the mask of every capability of this kernel.
func AllCaps() uint64 { return 1<<(lastCap()+1) - 1 }

// dropBounding empties the bounding set, so that no exec can give anything
// back. It needs CAP_SETPCAP, unless somebody (an OCI runtime) has emptied it
// already.
func dropBounding() error {
	for c := uintptr(0); ; c++ {
		in, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0)
		if e == unix.EINVAL {
			return nil // no such capability
		}
		if e == 0 && in == 0 {
			continue
		}
		_, _, e = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if e != 0 {
			return fmt.Errorf("confine: drop capability %d from the bounding set: %w", c, e)
		}
	}
}

// dropCaps empties every set of the calling thread but the bounding set.
func dropCaps() error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("confine: clear ambient capabilities: %w", e)
	}
	return setCaps(0)
}

// keepCaps makes what is permitted survive exec: for decoys alone.
func keepCaps() error {
	var head unix.CapUserHeader
	head.Version = unix.LINUX_CAPABILITY_VERSION_3
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return fmt.Errorf("confine: capget: %w", err)
	}
	mask := uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32
	if err := setCaps(mask); err != nil {
		return err
	}
	for m := mask; m != 0; m &= m - 1 {
		c := uintptr(bits.TrailingZeros64(m)) // #nosec G115 -- below 64
		if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0, 0); e != 0 {
			return fmt.Errorf("confine: raise ambient capability %d: %w", c, e)
		}
	}
	return nil
}

// setLimits sets the resource limits of the process. The syscall package's
// form is used on purpose: it tells the Go runtime not to put the old
// RLIMIT_NOFILE back at exec.
func (p Profile) setLimits() error {
	if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: p.NoFile, Max: p.NoFile}); err != nil {
		return fmt.Errorf("confine: RLIMIT_NOFILE %d: %w", p.NoFile, err)
	}
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{Cur: p.Core, Max: p.Core}); err != nil {
		return fmt.Errorf("confine: RLIMIT_CORE %d: %w", p.Core, err)
	}
	return nil
}

// Status is what /proc says of one thread (proc_pid_status(5)).
type Status struct {
	CapInh, CapPrm, CapEff, CapBnd, CapAmb uint64
	NoNewPrivs                             bool
	Seccomp                                int // 2: filter
}

// ReadStatus reads a status file, "/proc/thread-self/status" or another.
func ReadStatus(path string) (Status, error) {
	raw, err := os.ReadFile(path) // #nosec G304 -- procfs
	if err != nil {
		return Status{}, fmt.Errorf("confine: read back: %w", err)
	}
	return ParseStatus(string(raw))
}

// ParseStatus parses the text of a status file. A field that is missing is an
// error: absent must not read as zero.
func ParseStatus(text string) (Status, error) {
	var s Status
	seen := 0
	for line := range strings.Lines(text) {
		key, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		rest = strings.TrimSpace(rest)
		var to *uint64
		switch key {
		case "CapInh":
			to = &s.CapInh
		case "CapPrm":
			to = &s.CapPrm
		case "CapEff":
			to = &s.CapEff
		case "CapBnd":
			to = &s.CapBnd
		case "CapAmb":
			to = &s.CapAmb
		case "NoNewPrivs":
			s.NoNewPrivs = rest == "1"
			seen++
			continue
		case "Seccomp":
			n, err := strconv.Atoi(rest)
			if err != nil {
				return Status{}, fmt.Errorf("confine: status field %s: %w", key, err)
			}
			s.Seccomp = n
			seen++
			continue
		default:
			continue
		}
		n, err := strconv.ParseUint(rest, 16, 64)
		if err != nil {
			return Status{}, fmt.Errorf("confine: status field %s: %w", key, err)
		}
		*to = n
		seen++
	}
	if seen < 7 {
		return Status{}, errors.New("confine: status lacks one of CapInh, CapPrm, CapEff, CapBnd, CapAmb, NoNewPrivs, Seccomp")
	}
	return s, nil
}

// Verify says what of the profile a status does not show. Landlock cannot be
// read back; only attacks prove it.
func (p Profile) Verify(s Status) error {
	var errs []error
	if p.DropCaps && s.CapInh|s.CapPrm|s.CapEff|s.CapBnd|s.CapAmb != 0 {
		errs = append(errs, fmt.Errorf("capabilities are left (inheritable %x, permitted %x, effective %x, bounding %x, ambient %x)", s.CapInh, s.CapPrm, s.CapEff, s.CapBnd, s.CapAmb))
	}
	if p.NoNewPrivs && !s.NoNewPrivs {
		errs = append(errs, errors.New("no_new_privs is not set"))
	}
	if p.Seccomp && s.Seccomp != unix.SECCOMP_MODE_FILTER {
		errs = append(errs, fmt.Errorf("seccomp mode is %d, not 2 (filter)", s.Seccomp))
	}
	if len(errs) > 0 {
		return fmt.Errorf("confine: read back: %w", errors.Join(errs...))
	}
	return nil
}
