package prove

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// label reads which label of AppArmor or SELinux each process of the containers
// has, and compares it with the one that was meant for it.
func label(a Agent) Statement {
	s := Statement{ID: "label", Agent: a.Name, Says: "no label was meant for the processes of its containers: this only says which they have"}
	for _, l := range a.Labels {
		if l != "" {
			s.Says = "every process of its containers is confined by the AppArmor profile that was made for it, in enforce mode"
		}
	}
	seen := map[string]int{}
	n := 0
	for _, p := range a.Processes {
		if p.Role == "" {
			continue
		}
		got, err := LabelOf(p.PID)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		n++
		want := a.Labels[p.Role]
		switch {
		case errors.Is(err, ErrNoLabels) && want == "":
			got = "not supported: this kernel has neither AppArmor nor SELinux in use"
		case err != nil:
			s.against("process %d (%s): %v", p.PID, p.Role, err)
			continue
		case want != "" && !Enforced(got, want):
			s.against("process %d (%s) has the label %q, want %q, enforced", p.PID, p.Role, got, want)
		}
		seen[got]++
	}
	for _, l := range slices.Sorted(maps.Keys(seen)) {
		s.read("%d processes: %s", seen[l], l)
	}
	if n == 0 {
		s.against("%s", a.nothing("process"))
	}
	return s
}

// ErrNoLabels says that the kernel has no module that labels processes.
var ErrNoLabels = errors.New("this kernel labels no processes")

// LabelOf reads the label of a process: AppArmor's where it is there, else that of
// the module which answers for the old interface (SELinux).
func LabelOf(pid int) (string, error) {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return "", err
	}
	for _, name := range []string{"apparmor/current", "current"} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/%s", pid, name)) // #nosec G304 -- procfs
		if errors.Is(err, unix.EINVAL) || errors.Is(err, os.ErrNotExist) {
			continue // the module is not there, or not in use
		}
		if err != nil {
			return "", err
		}
		if l := strings.TrimRight(string(raw), "\x00\n"); l != "" {
			return l, nil
		}
	}
	return "", ErrNoLabels
}

// Enforced says whether a label is a profile's in enforce mode, alone or stacked
// with others ("container//&user (enforce)").
func Enforced(label, profile string) bool {
	names, ok := strings.CutSuffix(label, " (enforce)")
	return ok && profile != "" && slices.Contains(strings.Split(names, "//&"), profile)
}

// sockets says who may connect to a server's sockets.
func sockets(a Agent) Statement {
	s := Statement{ID: "sockets", Agent: a.Name, Says: "each of its sockets lets one id connect, and is root's to change"}
	for _, k := range a.Sockets {
		s.read("%s: for id %d", k.Path, k.ID)
		if k.Problem != "" {
			s.against("%s", k.Problem)
		}
	}
	if len(a.Sockets) == 0 {
		s.against("it has no socket")
	}
	return s
}

// ownUser says whether a process of a role must be in a user namespace of its own.
func ownUser(r engine.Role) bool { return r != engine.RoleAdapter && r != engine.RoleService }
