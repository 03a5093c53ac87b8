package prove

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// ownKinds are the kinds of namespace in which no container may be with the host.
var ownKinds = []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}

// namespaces looks at every process of the agent's containers.
func namespaces(a Agent) Statement {
	s := Statement{ID: "namespaces", Agent: a.Name, Says: "every process of its containers has namespaces of its own, and no network but loopback"}
	n := 0
	for _, p := range a.Processes {
		if p.Role == "" || p.Role == engine.RoleDialer || p.Role == engine.RoleResolver {
			continue // these connect for others, from the host's own network: see egress.dialer
		}
		err := isolated(p.PID, ownUser(p.Role))
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		n++
		if err != nil {
			s.against("process %d (%s): %v", p.PID, p.Role, err)
		}
	}
	s.Read = append(s.Read, fmt.Sprintf("%d processes", n))
	if n == 0 {
		s.against("%s", a.nothing("process"))
	}
	return s
}

func isolated(pid int, user bool) error {
	for _, kind := range ownKinds {
		if kind == "user" && !user {
			continue // its id is one of the host's, and no other id is mapped
		}
		host, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return err
		}
		if its == host {
			return fmt.Errorf("it shares the host's %s namespace", kind)
		}
	}
	links, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid)) // #nosec G304 -- procfs; its own namespace's
	if err != nil {
		return err
	}
	for _, name := range interfaces(string(links)) {
		if name != "lo" {
			return fmt.Errorf("its network namespace holds the interface %s", name)
		}
	}
	return rootsNetwork(pid)
}

// interfaces lists the names of a /proc/PID/net/dev.
func interfaces(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			out = append(out, strings.TrimSpace(name))
		}
	}
	return out
}

// rootsNetwork says whether the network namespace belongs to our user
// namespace: who owns it could configure it (ioctl_ns(2), NS_GET_USERNS).
func rootsNetwork(pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)) // #nosec G304 -- procfs
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const nsGetUserns = 0xb701                            // NS_GET_USERNS
	fd, err := unix.IoctlRetInt(int(f.Fd()), nsGetUserns) // #nosec G115 -- a descriptor
	if errors.Is(err, unix.EPERM) {
		return nil // it belongs to one above us, which is none of the agent's
	}
	if err != nil {
		return fmt.Errorf("who owns its network namespace: %w", err)
	}
	owner := os.NewFile(uintptr(fd), "user namespace") // #nosec G115 -- a descriptor
	defer func() { _ = owner.Close() }()
	var its, ours unix.Stat_t
	if err := unix.Fstat(fd, &its); err != nil {
		return err
	}
	if err := unix.Stat("/proc/self/ns/user", &ours); err != nil {
		return err
	}
	if its.Ino != ours.Ino || its.Dev != ours.Dev {
		return errors.New("its network namespace belongs to a user namespace of the agent's, whose owner could configure it")
	}
	return nil
}
