package warden

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"bulkhead/internal/layout"
)

// confinement is what /proc says of one process.
type confinement struct {
	pid       int
	uids      []uint32 // real, effective, saved, file system, as the host numbers them
	seccomp   int      // 2: filter
	noNewPriv bool
	caps      map[string]string // CapInh, CapPrm, CapEff, CapBnd, CapAmb in hex
	netns     string
	userns    string
}

// confinementOf reads /proc/PID/status and the process's namespaces.
func confinementOf(pid int) (confinement, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // #nosec G304 -- procfs
	if err != nil {
		return confinement{}, fmt.Errorf("read back process %d: %w", pid, err)
	}
	c, err := parseStatus(string(raw))
	if err != nil {
		return c, err
	}
	c.pid = pid
	if c.netns, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
		return c, err
	}
	c.userns, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	return c, err
}

func parseStatus(text string) (confinement, error) {
	c := confinement{caps: map[string]string{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch {
		case key == "Uid":
			for _, f := range strings.Fields(value) {
				n, err := strconv.ParseUint(f, 10, 32)
				if err != nil {
					return c, fmt.Errorf("status: Uid: %w", err)
				}
				c.uids = append(c.uids, uint32(n))
			}
		case key == "Seccomp":
			n, err := strconv.Atoi(value)
			if err != nil {
				return c, fmt.Errorf("status: Seccomp: %w", err)
			}
			c.seccomp = n
		case key == "NoNewPrivs":
			c.noNewPriv = value == "1"
		case strings.HasPrefix(key, "Cap"):
			c.caps[key] = value
		}
	}
	if len(c.uids) != 4 {
		return c, fmt.Errorf("status: no Uid line")
	}
	return c, nil
}

// check says what of the profile is not in force.
// A sandbox has capabilities in a user namespace of its own, which its engine
// compared with what it may have; here they must not be the host's.
func (c confinement) check(ids layout.IDs, sandboxed bool) error {
	if host, err := hostNamespace("user"); err != nil || c.userns == host {
		return errors.Join(errors.New("is in the host's user namespace"), err)
	}
	return c.checkFor(ids.Base, ids.Last(), sandboxed)
}

// checkFor is check for a process that may have the ids from first to last.
func (c confinement) checkFor(first, last uint32, sandboxed bool) error {
	for _, u := range c.uids {
		if u < first || u > last {
			return fmt.Errorf("runs as id %d, outside of its own ids", u)
		}
	}
	if c.seccomp != 2 {
		return fmt.Errorf("has no seccomp filter (mode %d)", c.seccomp)
	}
	if !c.noNewPriv {
		return fmt.Errorf("may gain privileges (no_new_privs is off)")
	}
	if len(c.caps) < 5 {
		return fmt.Errorf("its capabilities cannot be read")
	}
	for name, v := range c.caps {
		if sandboxed {
			break
		}
		if strings.Trim(v, "0") != "" {
			return fmt.Errorf("has capabilities (%s %s)", name, v)
		}
	}
	host, err := hostNamespace("net")
	if err != nil {
		return err
	}
	if c.netns == host {
		return fmt.Errorf("shares the host's network namespace")
	}
	return nil
}
