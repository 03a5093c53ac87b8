package prove

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
)

// privileges looks at every thread of the agent's containers.
func privileges(a Agent) Statement {
	s := Statement{ID: "privileges", Agent: a.Name, Says: "no thread of its containers has a capability, may gain one, or runs as an id outside of its range (its dialer: as another than its own)"}
	n := 0
	for _, p := range a.Processes {
		if p.Role == "" {
			continue
		}
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", p.PID))
		if err != nil {
			s.against("process %d: %v", p.PID, err)
			continue
		}
		for _, dir := range tasks {
			why, err := privilege(dir, idsOf(p.Role, a))
			if errors.Is(err, os.ErrNotExist) {
				continue // it has ended
			}
			n++
			if err != nil {
				why = err.Error()
			}
			if why != "" {
				s.against("process %d thread %s (%s): %s", p.PID, filepath.Base(dir), p.Role, why)
			}
		}
	}
	s.Read = append(s.Read, fmt.Sprintf("%d threads", n))
	if n == 0 {
		s.against("%s", a.nothing("thread"))
	}
	return s
}

// span is a closed interval of ids.
type span struct{ first, last uint32 }

// idsOf are the ids that a process of a role may have: the agent's range, or the
// dialer's own id.
func idsOf(role engine.Role, a Agent) span {
	if role == engine.RoleDialer {
		return span{a.IDs.Dialer, a.IDs.Dialer}
	}
	return a.span()
}

func privilege(task string, ids span) (against string, err error) {
	raw, err := os.ReadFile(filepath.Join(task, "status")) // #nosec G304 -- procfs
	if err != nil {
		return "", err
	}
	st, err := confine.ParseStatus(string(raw))
	if err != nil {
		return "", err
	}
	switch {
	case st.CapInh|st.CapPrm|st.CapEff|st.CapBnd|st.CapAmb != 0:
		return "it has capabilities, or may get some", nil
	case !st.NoNewPrivs:
		return "no_new_privs is off", nil
	}
	for _, key := range []string{"Uid:", "Gid:", "Groups:"} {
		list, err := numbersOf(string(raw), key)
		if err != nil {
			return "", err
		}
		for _, id := range list {
			if id < ids.first || id > ids.last {
				return fmt.Sprintf("%s %d is outside of %d to %d", strings.ToLower(strings.TrimSuffix(key, ":")), id, ids.first, ids.last), nil
			}
		}
	}
	return "", nil
}

// numbersOf reads the numbers of one line of a status file.
func numbersOf(status, key string) ([]uint32, error) {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, key)
		if !ok {
			continue
		}
		var out []uint32
		for f := range strings.FieldsSeq(rest) {
			n, err := strconv.ParseUint(f, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("status: %s %w", key, err)
			}
			out = append(out, uint32(n))
		}
		return out, nil
	}
	return nil, fmt.Errorf("status: no line %s", key)
}
