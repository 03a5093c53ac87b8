package throwaway

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// hierarchy is one cgroup hierarchy of the machine: all of v2, or the
// controllers of one v1 mount.
type hierarchy struct {
	Mount string `json:"mount"` // where the machine has it, and the host will
	Type  string `json:"type"`  // "cgroup" (v1) or "cgroup2"
	Data  string `json:"data"`  // the mount data that names it: "cpu,cpuacct"
}

// folder is the host's folder in h, on the machine.
func (h hierarchy) folder(id string) string { return filepath.Join(h.Mount, id) }

// hierarchies reads which the machine has.
func hierarchies() ([]hierarchy, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	seen := map[string]bool{}
	for _, m := range mounts {
		if m.Type != "cgroup" && m.Type != "cgroup2" {
			continue
		}
		h := hierarchy{Mount: m.Target, Type: m.Type}
		if m.Type == "cgroup" {
			h.Data = v1Data(m.Super)
		}
		if key := h.Type + " " + h.Data; !seen[key] {
			seen[key] = true
			all = append(all, h)
		}
	}
	return all, nil
}

// v1Data gives the mount data that names a v1 hierarchy, from the super
// options that the kernel shows. A hierarchy without controllers has a name
// and wants "none" (kernel: cgroup-v1.c, check_cgroupfs_options). Options that
// only the initial cgroup namespace may set are left out.
func v1Data(super string) string {
	var data []string
	named, controllers := false, false
	for o := range strings.SplitSeq(super, ",") {
		switch {
		case o == "rw" || o == "ro" || o == "clone_children" || strings.HasPrefix(o, "release_agent="):
		case strings.HasPrefix(o, "name="):
			named = true
			data = append(data, o)
		case o == "xattr" || o == "noprefix" || o == "cpuset_v2_mode":
			data = append(data, o)
		default:
			controllers = true
			data = append(data, o)
		}
	}
	if named && !controllers {
		data = append([]string{"none"}, data...)
	}
	return strings.Join(data, ",")
}

// makeGroups makes the host's folder in each hierarchy.
func (p *plan) makeGroups() error {
	for _, h := range p.Groups {
		dir := h.folder(p.ID)
		if err := os.Mkdir(dir, 0o755); err != nil { // #nosec G301 -- cgroupfs: readable by all, like every other cgroup
			return fmt.Errorf("throwaway: make cgroup: %w", err)
		}
		if h.Type == "cgroup2" {
			if err := handOn(h.Mount, limiting); err != nil {
				return err
			}
		}
		// A v1 cpuset starts empty, and an empty one takes no process
		// (kernel: admin-guide/cgroup-v1/cpusets.rst).
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if h.Type != "cgroup" || !hasWord(h.Data, "cpuset") {
				continue
			}
			if err := copyValue(filepath.Join(h.Mount, f), filepath.Join(dir, f)); err != nil {
				return err
			}
		}
	}
	return nil
}

// enterGroups moves this process into the host's folders. "0" is the writer.
func (p *plan) enterGroups() error {
	for _, h := range p.Groups {
		if err := writeValue(filepath.Join(h.folder(p.ID), "cgroup.procs"), "0"); err != nil {
			return err
		}
	}
	return nil
}

// mountGroups mounts the hierarchies inside. The caller is in a new cgroup
// namespace, so the host's folders are their roots.
func (p *plan) mountGroups(links map[string]string) error {
	top := "/sys/fs/cgroup"
	for _, h := range p.Groups {
		if strings.HasPrefix(h.Mount, top+"/") { // v1 or hybrid: mounts below a tmpfs
			if err := mount("tmpfs", top, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, "mode=755,size=1m"); err != nil {
				return err
			}
			break
		}
	}
	for _, h := range p.Groups {
		if err := os.MkdirAll(h.Mount, 0o755); err != nil { // #nosec G301 -- as on every machine
			return fmt.Errorf("throwaway: cgroup mount point: %w", err)
		}
		if err := mount(h.Type, h.Mount, h.Type, syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, h.Data); err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(top, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("throwaway: cgroup link: %w", err)
		}
	}
	for _, h := range p.Groups {
		if h.Type == "cgroup2" {
			if err := delegate(h.Mount); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate moves all processes of the host into a leaf and hands the
// controllers on: a v2 cgroup that has processes cannot (kernel:
// admin-guide/cgroup-v2.rst, "No Internal Process Constraint").
func delegate(root string) error {
	leaf := filepath.Join(root, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil { // #nosec G301 -- cgroupfs
		return fmt.Errorf("throwaway: cgroup leaf: %w", err)
	}
	procs, err := os.ReadFile(filepath.Join(root, "cgroup.procs")) // #nosec G304 -- cgroupfs of this host
	if err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	for pid := range strings.FieldsSeq(string(procs)) {
		if err := writeValue(filepath.Join(leaf, "cgroup.procs"), pid); err != nil {
			return err
		}
	}
	return handOn(root, func(string) bool { return true })
}

// limiting are the controllers that bound an agent. On the machine's own root,
// only those are handed on: systemd hands on what its units use at the moment,
// which often leaves cpu out, and a host without it could not try limits. They
// stay on. That limits nobody, and systemd itself takes back what no group
// uses when it next counts.
func limiting(controller string) bool {
	return controller == "memory" || controller == "pids" || controller == "cpu"
}

// handOn gives the groups below dir the wanted controllers that dir has.
func handOn(dir string, wanted func(controller string) bool) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers")) // #nosec G304 -- cgroupfs
	if err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	given, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")) // #nosec G304 -- cgroupfs
	if err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	for c := range strings.FieldsSeq(string(have)) {
		if !wanted(c) || hasWord(strings.Join(strings.Fields(string(given)), ","), c) {
			continue
		}
		if err := writeValue(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
			return err
		}
	}
	return nil
}

// groupLinks are the short names of v1 hierarchies (cpu -> cpu,cpuacct).
func groupLinks() map[string]string {
	links := map[string]string{}
	entries, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil {
		return links // no cgroups: nothing to link
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join("/sys/fs/cgroup", e.Name())); err == nil {
			links[e.Name()] = target
		}
	}
	return links
}

// removeGroups removes the host's folders with everything below. Its processes
// are dead; the kernel takes a moment to let go of their cgroups.
func (p *plan) removeGroups() error {
	for _, h := range p.Groups {
		deadline := time.Now().Add(10 * time.Second)
		for {
			err := removeTree(h.folder(p.ID))
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("throwaway: remove cgroup: %w", err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// removeTree removes cgroup folders from the leaves up: files in them cannot
// be removed, and vanish with their folder.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

func copyValue(from, to string) error {
	v, err := os.ReadFile(from) // #nosec G304 -- cgroupfs
	if err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	return writeValue(to, strings.TrimSpace(string(v)))
}

// writeValue writes a kernel file that exists.
func writeValue(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0) // #nosec G304 -- cgroupfs and proc only
	if err != nil {
		return fmt.Errorf("throwaway: %w", err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("throwaway: write %q to %s: %w", value, path, err)
	}
	return nil
}

// machineMount is one line of /proc/self/mountinfo.
type machineMount struct{ Target, Type, Super string }

// readMounts reads all mounts of this namespace (proc_pid_mountinfo(5)).
func readMounts() ([]machineMount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("throwaway: %w", err)
	}
	defer func() { _ = f.Close() }()
	var all []machineMount
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			return nil, fmt.Errorf("throwaway: mountinfo line %q has too few fields", lines.Text())
		}
		all = append(all, machineMount{Target: unescape(l[4]), Type: r[0], Super: r[2]})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("throwaway: mountinfo: %w", err)
	}
	return all, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
