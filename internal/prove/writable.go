package prove

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"bulkhead/internal/engine"
)

// written is what one agent's containers may write, by file system and folder
// in it, as the kernel's mount tables say.
type written struct {
	agent  string
	places []place
	err    error
}

type place struct {
	device string // major:minor
	root   string // of the mount, in its file system
	kind   string
	at     string // where one process sees it
}

// kernelKinds are file systems without files of their own: what they show is
// the reader's own namespaces'. The permissions on them are the attacks' matter.
var kernelKinds = []string{"proc", "sysfs", "cgroup", "cgroup2", "mqueue", "devpts", "bpf", "securityfs", "debugfs", "tracefs"}

func writtenBy(a Agent) written {
	w := written{agent: a.Name}
	for _, p := range a.Processes {
		if p.Role == "" || p.Role == engine.RoleDialer || p.Role == engine.RoleResolver {
			continue
		}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.PID)) // #nosec G304 -- procfs
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			var list []place
			list, err = writablePlaces(string(raw))
			for _, m := range list {
				if !slices.ContainsFunc(w.places, func(o place) bool { return o.device == m.device && o.root == m.root }) {
					w.places = append(w.places, m)
				}
			}
		}
		w.err = errors.Join(w.err, err)
	}
	return w
}

// writablePlaces reads a mount table (proc_pid_mountinfo(5)).
func writablePlaces(text string) ([]place, error) {
	var out []place
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			return nil, fmt.Errorf("mountinfo: %.80q cannot be read", line)
		}
		if slices.Contains(strings.Split(l[5], ","), "ro") || slices.Contains(strings.Split(r[2], ","), "ro") || slices.Contains(kernelKinds, r[0]) {
			continue
		}
		out = append(out, place{device: l[2], root: l[3], kind: r[0], at: l[4]})
	}
	return out, nil
}

// meets says whether one place is in the other.
func (p place) meets(o place) bool {
	if p.device != o.device {
		return false
	}
	in := func(a, b string) bool { return a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/") }
	return in(p.root, o.root) || in(o.root, p.root)
}

func writable(mine written, all []written) Statement {
	s := Statement{ID: "writable", Agent: mine.agent, Says: "nothing that its containers may write is also another agent's to write"}
	if mine.err != nil {
		s.against("%v", mine.err)
	}
	for _, p := range mine.places {
		s.Read = append(s.Read, fmt.Sprintf("%s: %s of device %s (%s)", p.at, p.root, p.device, p.kind))
		for _, o := range all {
			if o.agent == mine.agent {
				continue
			}
			for _, q := range o.places {
				if p.meets(q) {
					s.against("%s is %s of device %s, and so is %s of %s", p.at, p.root, p.device, q.at, o.agent)
				}
			}
		}
	}
	return s
}
