package podman

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
)

// readBack says what of the Spec is not in force for the container's first
// process, which waits in stage 2. The kernel is asked, not Podman: the same
// questions as for a cell, and those that a cell does not need because nobody
// else made it.
func (s *start) readBack(pid int) error {
	dir := fmt.Sprintf("/proc/%d", pid)
	status, err := os.ReadFile(dir + "/status") // #nosec G304 -- procfs
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	mounts, err := os.ReadFile(dir + "/mountinfo") // #nosec G304 -- procfs
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	errs := []error{checkStatus(s.spec, string(status)), checkMounts(s.spec, string(mounts)), s.checkNamespaces(dir)}
	for _, kind := range []string{"uid_map", "gid_map"} {
		raw, err := os.ReadFile(dir + "/" + kind) // #nosec G304 -- procfs
		if err == nil {
			err = checkMap(s.spec, string(raw))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("process %d is not confined as it must be: %w", pid, err)
	}
	return nil
}

func checkStatus(s *engine.Spec, text string) error {
	st, err := confine.ParseStatus(text)
	if err != nil {
		return err
	}
	errs := []error{confine.For(s).Verify(st)}
	id := hostID(s)
	want := strings.Repeat(strconv.FormatUint(uint64(id), 10)+" ", 4)
	seen := 0
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.Join(strings.Fields(value), " ")
		switch key {
		case "Uid", "Gid":
			seen++
			if value+" " != want {
				errs = append(errs, fmt.Errorf("%s is %s, not four times %d", key, value, id))
			}
		case "Groups":
			seen++
			if value != "" && value != strconv.FormatUint(uint64(id), 10) {
				errs = append(errs, fmt.Errorf("it is in the groups %s", value))
			}
		case "NSpid":
			seen++
			if f := strings.Fields(value); len(f) < 2 || f[len(f)-1] != "1" {
				errs = append(errs, fmt.Errorf("it is not process 1 of its own (NSpid %s)", value))
			}
		}
	}
	if seen != 4 {
		errs = append(errs, errors.New("its status lacks Uid, Gid, Groups or NSpid"))
	}
	return errors.Join(errs...)
}

func hostID(s *engine.Spec) uint32 {
	for _, m := range s.User.Map {
		if m.Inside == s.User.ID {
			return m.Host
		}
	}
	return s.User.ID
}

// namespaces must all be others than ours, and the network the one we made.
var namespaces = []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}

func (s *start) checkNamespaces(dir string) error {
	var errs []error
	for _, kind := range namespaces {
		theirs, err := os.Readlink(dir + "/ns/" + kind)
		if err != nil {
			return err
		}
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		if theirs == ours {
			errs = append(errs, fmt.Errorf("it shares our %s namespace", kind))
		}
		if kind == "net" && theirs != s.netns {
			errs = append(errs, fmt.Errorf("its network is %s, not %s, which root made", theirs, s.netns))
		}
	}
	return errors.Join(errs...)
}

// checkMap compares uid_map or gid_map, as seen from the initial user
// namespace, with the Spec.
func checkMap(s *engine.Spec, text string) error {
	want := map[string]bool{}
	for _, m := range s.User.Map {
		inside := m.Inside
		if inside == layout.EngineID {
			inside = 0
		}
		want[fmt.Sprintf("%d %d 1", inside, m.Host)] = true
	}
	for line := range strings.Lines(text) {
		line = strings.Join(strings.Fields(line), " ")
		if !want[line] {
			return fmt.Errorf("%q is not in the Spec", line)
		}
		delete(want, line)
	}
	if len(want) > 0 {
		return fmt.Errorf("%d ids of the Spec are missing", len(want))
	}
	return nil
}

// mountLine is one line of mountinfo.
type mountLine struct {
	point, kind string
	options     []string // of the mount, not of the file system
}

func (m mountLine) has(option string) bool { return slices.Contains(m.options, option) }

// parseMounts gives what is on top at each mount point (proc_pid_mountinfo(5));
// later lines cover earlier ones.
func parseMounts(text string) (map[string]mountLine, error) {
	out := map[string]mountLine{}
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimRight(line, "\n"), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 1 {
			return nil, fmt.Errorf("mountinfo line %q has too few fields", line)
		}
		out[l[4]] = mountLine{point: l[4], kind: r[0], options: strings.Split(l[5], ",")}
	}
	return out, nil
}

// engineMounts are those that the OCI runtime makes itself and that may be
// writable: devices, terminals and shared memory. Which nodes there are below
// /dev is the account cell's choice.
var engineMounts = []string{"/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/run/.containerenv"}

func checkMounts(s *engine.Spec, text string) error {
	got, err := parseMounts(text)
	if err != nil {
		return err
	}
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	flag := func(m mountLine, option string, want bool) {
		if m.has(option) != want {
			bad("mount %s: %s is %v", m.point, option, !want)
		}
	}
	for _, point := range []string{"/", "/proc", "/dev"} {
		if _, ok := got[point]; !ok {
			bad("nothing is mounted on %s", point)
		}
	}
	root := got["/"]
	for _, o := range []string{"ro", "nosuid", "nodev"} {
		flag(root, o, true)
	}
	ours := map[string]bool{"/": true}
	for _, m := range s.Mounts {
		line, ok := got[m.Target]
		if !ok {
			bad("mount %s is missing", m.Target)
			continue
		}
		ours[m.Target] = true
		flag(line, "nosuid", true)
		flag(line, "nodev", true)
		flag(line, "ro", !m.Writable)
		flag(line, "noexec", !m.Exec)
		if (line.kind == "tmpfs") != (m.Kind == engine.MountTmpfs) && m.Kind == engine.MountTmpfs {
			bad("mount %s is of type %s", m.Target, line.kind)
		}
	}
	for point, line := range got {
		if ours[point] || line.has("ro") {
			continue
		}
		device := strings.HasPrefix(point, "/dev/") && (line.has("nosuid") && line.has("noexec"))
		masked := strings.HasPrefix(point, "/proc/") && (line.has("nosuid") && line.has("noexec"))
		if !slices.Contains(engineMounts, point) && !device && !masked {
			bad("%s is a writable mount that the Spec does not have", point)
			continue
		}
		if point != "/dev" { // root alone could add to it, and nothing is root inside
			flag(line, "noexec", true)
		}
		flag(line, "nosuid", true)
	}
	return errors.Join(errs...)
}

// parentOf reads the parent of a process (proc_pid_stat(5), field 4; the
// command's name before it may hold anything).
func parentOf(pid int) (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // #nosec G304 -- procfs
	if err != nil {
		return 0, fmt.Errorf("parent of process %d: %w", pid, err)
	}
	_, rest, ok := cutLast(string(raw), ')')
	f := strings.Fields(rest)
	if !ok || len(f) < 2 {
		return 0, fmt.Errorf("parent of process %d: its stat has too few fields", pid)
	}
	return strconv.Atoi(f[1])
}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}
