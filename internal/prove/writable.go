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
	// readable are those that are mounted read-only.
	readable []place
	err      error
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
			var list, readable []place
			list, readable, err = places(string(raw))
			w.places, w.readable = more(w.places, list), more(w.readable, readable)
		}
		w.err = errors.Join(w.err, err)
	}
	return w
}

// more adds places that are not there yet.
func more(to, list []place) []place {
	for _, m := range list {
		if !slices.ContainsFunc(to, func(o place) bool { return o.device == m.device && o.root == m.root }) {
			to = append(to, m)
		}
	}
	return to
}

// places reads a mount table (proc_pid_mountinfo(5)).
func places(text string) (writable, readable []place, err error) {
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			return nil, nil, fmt.Errorf("mountinfo: %.80q cannot be read", line)
		}
		p := place{device: l[2], root: l[3], kind: r[0], at: l[4]}
		switch {
		case slices.Contains(kernelKinds, r[0]):
		case slices.Contains(strings.Split(l[5], ","), "ro") || slices.Contains(strings.Split(r[2], ","), "ro"):
			readable = append(readable, p)
		default:
			writable = append(writable, p)
		}
	}
	return writable, readable, nil
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
