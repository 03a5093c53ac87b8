// Package cgroup bounds process trees with Linux control groups, version 1
// (one hierarchy per controller), version 2 (one hierarchy), and hosts that
// mount both.
//
// Only memory, pids and cpu are used. Every limit that is written is read
// back; a limit that the kernel did not take is an error. Nothing outside the
// one root folder that a [Tree] names is ever written, except that on version
// 2 the three controllers are switched on for the root folder's parent.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RootName is the folder that holds everything of Bulkhead's.
const RootName = "bulkhead"

// controllers are the ones that bound an agent.
var controllers = []string{"memory", "pids", "cpu"}

// Controllers gives the names of the controllers that bound an agent.
func Controllers() []string { return slices.Clone(controllers) }

// Limits bound one group. A zero field is not written.
type Limits struct {
	MemoryBytes int64 // memory and swap together
	MilliCPU    int64 // 1000 is one core
	PIDs        int64
}

// Tree is Bulkhead's own folder in every hierarchy. It is safe for concurrent
// use.
type Tree struct {
	name    string
	unified string            // mount point of version 2, when it has the controllers
	dirs    map[string]string // version 1: controller -> mount point
}

// Open finds the hierarchies of this process's mount namespace. name is the
// path of the root folder, from the hierarchy's root on: what [Place] says, or
// "bulkhead-test-…" in tests. On version 1 it is one name. The folders above it
// are never made.
func Open(name string) (*Tree, error) {
	if err := checkPath(name); err != nil {
		return nil, fmt.Errorf("cgroup: %q is no name of a root folder", name)
	}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroup: find the hierarchies: %w", err)
	}
	t := &Tree{name: name, dirs: map[string]string{}}
	v2, v1 := Mounts(string(raw))
	if v2 != "" && hasControllers(v2) {
		t.unified = v2
		return t, nil
	}
	if strings.Contains(name, "/") {
		return nil, fmt.Errorf("cgroup: the root folder %q lies below another, which only version 2 has", name)
	}
	for _, c := range controllers {
		if v1[c] == "" {
			return nil, fmt.Errorf("cgroup: no hierarchy with the %s controller is mounted; mount cgroup2 on /sys/fs/cgroup", c)
		}
		t.dirs[c] = v1[c]
	}
	return t, nil
}

// Unified says whether version 2 is used.
func (t *Tree) Unified() bool { return t.unified != "" }

// Mounts reads proc_pid_mountinfo(5): the mount point of version 2, and
// that of each version 1 controller.
func Mounts(mountinfo string) (v2 string, v1 map[string]string) {
	v1 = map[string]string{}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimRight(line, "\n"), " - ")
		if !ok {
			continue
		}
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 {
			continue
		}
		point := unescape(left[4])
		switch right[0] {
		case "cgroup2":
			if v2 == "" {
				v2 = point
			}
		case "cgroup":
			for opt := range strings.SplitSeq(right[2], ",") {
				if slices.Contains(controllers, opt) && v1[opt] == "" {
					v1[opt] = point
				}
			}
		}
	}
	return v2, v1
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out = append(out, byte(n))
				i += 3
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}

func hasControllers(point string) bool {
	raw, err := os.ReadFile(filepath.Join(point, "cgroup.controllers")) // #nosec G304 -- cgroupfs
	if err != nil {
		return false
	}
	have := strings.Fields(string(raw))
	for _, c := range controllers {
		if !slices.Contains(have, c) {
			return false
		}
	}
	return true
}

// isComponent is written by hand because a regular expression costs every
// process of the shim's program half a millisecond at its start.
func isComponent(c string) bool {
	if c == "" || len(c) > 128 || c[0] == '.' || c[0] == '-' {
		return false
	}
	for i := range len(c) {
		b := c[i]
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '_' && b != '.' && b != '-' {
			return false
		}
	}
	return true
}

// checkPath refuses anything that could leave the root folder or meet one of
// the kernel's own files: those all have the form "controller.name".
func checkPath(path string) error {
	for c := range strings.SplitSeq(path, "/") {
		prefix, _, dotted := strings.Cut(c, ".")
		if !isComponent(c) || dotted && (prefix == "cgroup" || slices.Contains(controllers, prefix)) {
			return fmt.Errorf("cgroup: %q is no path of a group: names of letters, digits, '-', '_' and '.', joined by '/'", path)
		}
	}
	return nil
}

// Group is one control group. It is safe for concurrent use.
type Group struct {
	tree *Tree
	path string // below the root folder
}

// Group names a group without making it. The empty path is the root folder.
func (t *Tree) Group(path string) (*Group, error) {
	if path != "" {
		if err := checkPath(path); err != nil {
			return nil, err
		}
	}
	return &Group{tree: t, path: path}, nil
}

// Create makes the group (and its parents), or takes the one that is there,
// sets the limits and reads them back.
func (t *Tree) Create(path string, l Limits) (*Group, error) {
	g, err := t.Group(path)
	if err != nil {
		return nil, err
	}
	for range 3 {
		// Whoever finds the root empty may remove it meanwhile.
		if err = t.make(g); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if err := g.setLimits(l); err != nil {
		return nil, err
	}
	return g, nil
}

func (t *Tree) make(g *Group) error {
	if t.unified != "" {
		return t.createUnified(g.path)
	}
	for _, dir := range g.folders() {
		if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- cgroupfs
			return fmt.Errorf("cgroup: make %s: %w", dir, err)
		}
	}
	return nil
}

// createUnified makes the root folder and each one on the way to path, and
// switches the controllers on for its children.
func (t *Tree) createUnified(path string) error {
	parent, root := filepath.Split(t.name)
	dir := filepath.Join(t.unified, parent)
	for c := range strings.SplitSeq(filepath.Join(root, path), "/") {
		if err := enable(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, c)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // #nosec G301 -- cgroupfs
			return fmt.Errorf("cgroup: make %s: %w", dir, err)
		}
	}
	return nil
}

func enable(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	raw, err := os.ReadFile(file) // #nosec G304 -- cgroupfs
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	have := strings.Fields(string(raw))
	for _, c := range controllers {
		if slices.Contains(have, c) {
			continue
		}
		if err := write(file, "+"+c); err != nil {
			return fmt.Errorf("%w (a group that holds processes itself cannot share controllers out: is the warden in a group of its own?)", err)
		}
	}
	return nil
}

// Path is the group's path below the root folder.
func (g *Group) Path() string { return g.path }

// Full is the path as /proc/PID/cgroup shows it, from the hierarchy's root on.
func (g *Group) Full() string { return "/" + g.rel() }

func (g *Group) rel() string { return filepath.Join(g.tree.name, g.path) }

// folders are the group's folders, one per hierarchy, in the order of
// [controllers].
func (g *Group) folders() []string {
	if g.tree.unified != "" {
		return []string{filepath.Join(g.tree.unified, g.rel())}
	}
	out := make([]string, 0, len(controllers))
	for _, c := range controllers {
		if dir := filepath.Join(g.tree.dirs[c], g.rel()); !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out
}

func (g *Group) file(controller, name string) string {
	if g.tree.unified != "" {
		return filepath.Join(g.tree.unified, g.rel(), name)
	}
	return filepath.Join(g.tree.dirs[controller], g.rel(), name)
}

// Exists says whether the group is there in every hierarchy.
func (g *Group) Exists() bool {
	for _, dir := range g.folders() {
		if _, err := os.Stat(dir); err != nil {
			return false
		}
	}
	return true
}

// Remove removes the group and every group below it, none of which may hold a
// process. It waits a moment for processes that are just ending. It is no
// error when there is none.
func (g *Group) Remove() error {
	for _, dir := range g.folders() {
		if err := removeTree(dir); err != nil {
			return err
		}
	}
	return nil
}

// RemoveRoot removes the root folder if nothing is in it: no group and no process.
func (t *Tree) RemoveRoot() {
	root := &Group{tree: t}
	for _, dir := range root.folders() {
		_ = unix.Rmdir(dir) // refused while somebody uses it
	}
}

// removalPatience is how long a group may stay busy after its last process
// was killed: the kernel lets go of exiting tasks a little later.
const removalPatience = 2 * time.Second

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: remove %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for wait, spent := time.Millisecond, time.Duration(0); ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || spent > removalPatience {
			return fmt.Errorf("cgroup: remove %s: %w", dir, err)
		}
		time.Sleep(wait)
		spent += wait
	}
}

func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0) // #nosec G304 -- cgroupfs
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cgroup: write %q to %s: %w", value, file, err)
	}
	return nil
}

func read(file string) (string, error) {
	raw, err := os.ReadFile(file) // #nosec G304 -- cgroupfs
	if err != nil {
		return "", fmt.Errorf("cgroup: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
