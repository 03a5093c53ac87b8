package prove

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
)

// Resources are the limits of a process that no cgroup keeps: of open files, and
// of bytes of a core file. math.MaxUint64 stands for no limit.
type Resources struct {
	NoFile, CoreBytes uint64
}

// ReadResources reads the hard limits of a process from /proc/PID/limits
// (proc_pid_limits(5)).
func ReadResources(pid int) (Resources, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid)) // #nosec G304 -- procfs
	if err != nil {
		return Resources{}, err
	}
	return parseResources(string(raw))
}

// parseResources reads lines like "Max open files  1024  1048576  files": the
// name, the soft limit, the hard one, the unit.
func parseResources(text string) (r Resources, err error) {
	for _, one := range []struct {
		name string
		to   *uint64
	}{{"Max open files", &r.NoFile}, {"Max core file size", &r.CoreBytes}} {
		found := false
		for line := range strings.Lines(text) {
			rest, ok := strings.CutPrefix(line, one.name)
			f := strings.Fields(rest)
			if !ok || len(f) < 2 {
				continue
			}
			found = true
			if f[1] == "unlimited" {
				*one.to = math.MaxUint64
				break
			}
			if *one.to, err = strconv.ParseUint(f[1], 10, 64); err != nil {
				return r, fmt.Errorf("limits: %s: %w", one.name, err)
			}
			break
		}
		if !found {
			return r, fmt.Errorf("limits: no line %q", one.name)
		}
	}
	return r, nil
}

// resources adds to the statement limits what the runtime's processes may open
// and leave behind; more than the manifest says is against it.
func (s *Statement) resources(a Agent) {
	var most Resources
	n := 0
	for _, p := range a.Processes {
		if p.Role != engine.RoleRuntime {
			continue
		}
		r, err := ReadResources(p.PID)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			s.against("process %d: %v", p.PID, err)
			continue
		}
		n++
		most.NoFile, most.CoreBytes = max(most.NoFile, r.NoFile), max(most.CoreBytes, r.CoreBytes)
		if r.NoFile > a.Resources.NoFile {
			s.against("process %d may open %d files, more than the %d of the manifest", p.PID, r.NoFile, a.Resources.NoFile)
		}
		if r.CoreBytes > a.Resources.CoreBytes {
			s.against("process %d may leave a core file of %d bytes, more than the %d of the manifest", p.PID, r.CoreBytes, a.Resources.CoreBytes)
		}
	}
	if n > 0 {
		s.Read = append(s.Read, fmt.Sprintf("open files: %d, core file in bytes: %d, the most of %d processes of the runtime in /proc/PID/limits", most.NoFile, most.CoreBytes, n))
	}
}
