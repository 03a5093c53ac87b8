package prove

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"bulkhead/internal/engine"
)

// unwritable are parts of /proc that act on the whole host (see
// internal/engine/cell, proc.go): whoever shows a /proc covers them.
var unwritable = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"}

// mounts looks at the flags of every mount of the agent's containers: no
// set-user-id program counts, no device node works outside of /dev, the root and
// what acts on the host cannot be written.
func mounts(a Agent) Statement {
	s := Statement{ID: "mounts", Agent: a.Name, Says: "every mount of its containers is nosuid, and nodev outside of /dev; / and the parts of /proc that act on the host are read-only"}
	n := 0
	for _, p := range a.Processes {
		if p.Role == "" || p.Role == engine.RoleDialer || p.Role == engine.RoleResolver {
			continue
		}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.PID)) // #nosec G304 -- procfs
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			s.against("process %d: %v", p.PID, err)
			continue
		}
		list, err := parseMounts(string(raw))
		if err != nil {
			s.against("process %d: %v", p.PID, err)
			continue
		}
		n += len(list)
		for _, why := range loose(list) {
			s.against("process %d (%s): %s", p.PID, p.Role, why)
		}
	}
	s.Read = append(s.Read, fmt.Sprintf("%d mounts", n))
	if n == 0 {
		s.against("%s", a.nothing("mount"))
	}
	return s
}

// mounted is one line of a mount table.
type mounted struct {
	at    string
	kind  string
	flags []string // of the mount
	super []string // of the file system
}

func (m mounted) has(flag string) bool { return slices.Contains(m.flags, flag) }

func (m mounted) readOnly() bool { return m.has("ro") || slices.Contains(m.super, "ro") }

func parseMounts(text string) ([]mounted, error) {
	var out []mounted
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			return nil, fmt.Errorf("mountinfo: %.80q cannot be read", line)
		}
		out = append(out, mounted{at: l[4], kind: r[0], flags: strings.Split(l[5], ","), super: strings.Split(r[2], ",")})
	}
	return out, nil
}

// loose says which mounts lack a flag. What a mount covers does not count: it
// cannot be reached.
func loose(list []mounted) []string {
	var out []string
	top := map[string]mounted{}
	for _, m := range list {
		top[m.at] = m // the last one on a place is on top
	}
	for at, m := range top {
		// OCI runtimes cover parts of /proc without it; the kernel runs nothing
		// from procfs, and nobody can put anything into what is read-only.
		cover := strings.HasPrefix(at, "/proc/") && m.readOnly()
		if !m.has("nosuid") && !cover {
			out = append(out, at+" is not nosuid")
		}
		if !m.has("nodev") && !devices(m) {
			out = append(out, at+" is not nodev")
		}
	}
	if m, ok := top["/"]; ok && !m.readOnly() {
		out = append(out, "/ can be written")
	}
	for _, at := range unwritable {
		// One that this kernel does not have needs no cover, and has none.
		if m, ok := top[at]; ok && !m.readOnly() {
			out = append(out, at+" can be written")
		}
	}
	if m, ok := top["/proc"]; ok && m.kind == "proc" {
		if _, covered := top["/proc/sys"]; !covered {
			out = append(out, "/proc/sys is not covered")
		}
	}
	slices.Sort(out)
	return out
}

// devices says whether a mount is of the nodes that root made: /dev itself, its
// terminals, a single node, or the node that covers a file of /proc.
func devices(m mounted) bool {
	return m.at == "/dev" || m.at == "/dev/pts" || m.at == "/dev/console" || strings.HasPrefix(m.at, "/dev/") && m.kind != "tmpfs" ||
		strings.HasPrefix(m.at, "/dev/") && m.has("ro") || strings.HasPrefix(m.at, "/proc/")
}
