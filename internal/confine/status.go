package confine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Status is what /proc says of one thread (proc_pid_status(5)).
type Status struct {
	CapInh, CapPrm, CapEff, CapBnd, CapAmb uint64
	NoNewPrivs                             bool
	Seccomp                                int // 2: filter
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
