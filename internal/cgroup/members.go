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

// Join moves the calling process, with all its threads, into the group.
func (g *Group) Join() error {
	for _, dir := range g.folders() {
		if err := write(filepath.Join(dir, "cgroup.procs"), "0"); err != nil {
			return err
		}
	}
	return nil
}

// Unified says whether the group is one of version 2.
func (g *Group) Unified() bool { return g.tree.Unified() }

// JoinThread moves only the calling thread, which must be one of thread.Run:
// what it forks then is born in the group. Version 1 only; on
// version 2 use [Group.Open] and CLONE_INTO_CGROUP.
func (g *Group) JoinThread() error {
	if g.tree.unified != "" {
		return errors.New("cgroup: threads cannot move by themselves on version 2")
	}
	for _, dir := range g.folders() {
		if err := write(filepath.Join(dir, "tasks"), "0"); err != nil {
			return err
		}
	}
	return nil
}

// Open gives the group's folder for CLONE_INTO_CGROUP (version 2 only).
func (g *Group) Open() (*os.File, error) {
	if g.tree.unified == "" {
		return nil, errors.New("cgroup: CLONE_INTO_CGROUP needs version 2")
	}
	f, err := os.Open(g.folders()[0])
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return f, nil
}

// Procs lists the processes of the group itself (not of groups below it), as
// the caller's PID namespace numbers them. Processes that this namespace
// cannot see are left out. A group that does not exist has none.
func (g *Group) Procs() ([]int, error) {
	return procs(filepath.Join(g.folders()[0], "cgroup.procs"))
}

func procs(file string) ([]int, error) {
	raw, err := os.ReadFile(file) // #nosec G304 -- cgroupfs
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	var out []int
	for f := range strings.FieldsSeq(string(raw)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("cgroup: %s: %w", file, err)
		}
		// 0 stands for a process outside this PID namespace. It must never
		// reach kill(2), where it means the caller's own process group.
		if pid > 0 {
			out = append(out, pid)
		}
	}
	return out, nil
}

// all lists the processes of the group and of every group below it, in every
// hierarchy. visitors are those of root that only have a thread there (see
// JoinThread): they are no members, and nothing is done to them.
func (g *Group) all() (members, visitors []int, err error) {
	for _, dir := range g.folders() {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !e.IsDir() {
				return err
			}
			here, there, err := g.in(path)
			members, visitors = append(members, here...), append(visitors, there...)
			return err
		})
		if err != nil {
			return nil, nil, fmt.Errorf("cgroup: list %s: %w", g.path, err)
		}
	}
	slices.Sort(members)
	members = slices.Compact(members)
	// A process that is a member by one of its places is one.
	visitors = slices.DeleteFunc(visitors, func(pid int) bool { return slices.Contains(members, pid) })
	slices.Sort(visitors)
	return members, slices.Compact(visitors), nil
}

// in lists the processes of one folder.
func (g *Group) in(dir string) (members, visitors []int, err error) {
	all, err := procs(filepath.Join(dir, "cgroup.procs"))
	if err != nil || len(all) == 0 || g.tree.unified != "" {
		return all, nil, err
	}
	// Version 1 names a process in cgroup.procs when any thread of it is there,
	// and each thread in tasks.
	threads, err := procs(filepath.Join(dir, "tasks"))
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range all {
		if !slices.Contains(threads, pid) && isRoots(pid) {
			visitors = append(visitors, pid)
		} else {
			members = append(members, pid)
		}
	}
	return members, visitors, nil
}

// isRoots says whether a process is root's in every respect. Nothing of an
// agent ever is: the first thread of a process may end before the others and is
// in no list then, which must not pass for a visit.
func isRoots(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // #nosec G304 -- procfs
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			return strings.Join(strings.Fields(ids), " ") == "0 0 0 0"
		}
	}
	return false
}

// Kill ends every process of the group and of the groups below it, and
// returns when none is left, or an error after patience. On version 1 the
// group first loses the right to fork, so that a fork bomb cannot outrun the
// loop; Create gives it back. A thread of root's (see JoinThread) that has not
// ended yet is waited for: a signal would end its whole process.
func (g *Group) Kill(patience time.Duration) error {
	if !g.Exists() {
		return nil
	}
	if g.tree.unified != "" {
		// Since Linux 5.14; before that, or when it fails, the loop does it.
		_ = write(g.file("", "cgroup.kill"), "1")
	} else if err := write(g.file("pids", "pids.max"), "0"); err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for wait := time.Millisecond; ; wait = min(wait*2, 50*time.Millisecond) {
		pids, visitors, err := g.all()
		if err != nil {
			return err
		}
		if len(pids)+len(visitors) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("cgroup: kill %d of %s: %w", pid, g.path, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup: %d processes of %s outlived SIGKILL for %v: %v; threads of %v are still there", len(pids), g.path, patience, pids, visitors)
		}
		time.Sleep(wait)
	}
}

// Busy says whether a process is in the group or below it. A group that is not
// there is not busy.
func (g *Group) Busy() (bool, error) {
	if !g.Exists() {
		return false, nil
	}
	members, visitors, err := g.all()
	return len(members)+len(visitors) > 0, err
}
