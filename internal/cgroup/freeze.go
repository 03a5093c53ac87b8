package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze stops every process of the group and of the groups below it where it
// stands, and returns when the kernel says that none runs any more. What is in
// memory stays. SIGKILL still ends a frozen process. Safe to repeat.
//
// Version 2 has cgroup.freeze. On version 1 the processes get SIGSTOP, which no
// process can refuse, until a whole pass finds none that runs: a process that
// was stopped cannot start another or wake one.
func (g *Group) Freeze(patience time.Duration) error {
	if !g.Exists() {
		return nil
	}
	if g.tree.unified != "" {
		if err := write(g.file("", "cgroup.freeze"), "1"); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(patience)
	for wait := time.Millisecond; ; wait = min(wait*2, 20*time.Millisecond) {
		frozen, err := g.pass()
		if err != nil || frozen {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup: processes of %s still run %v after they were told to stop", g.path, patience)
		}
		time.Sleep(wait)
	}
}

// pass looks once, and on version 1 stops what runs.
func (g *Group) pass() (frozen bool, err error) {
	if g.tree.unified != "" {
		return g.Frozen()
	}
	pids, _, err := g.all()
	if err != nil {
		return false, err
	}
	frozen = true
	for _, pid := range pids {
		if stopped(pid) {
			continue
		}
		frozen = false
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
			return false, fmt.Errorf("cgroup: stop %d of %s: %w", pid, g.path, err)
		}
	}
	return frozen, nil
}

// Frozen says whether no process of the group or below it can run. A group
// without processes is frozen only on version 2, where it keeps what enters. A
// thread of root's that is there does not count.
func (g *Group) Frozen() (bool, error) {
	if g.tree.unified != "" {
		raw, err := os.ReadFile(g.file("", "cgroup.events"))
		if err != nil {
			return false, fmt.Errorf("cgroup: %w", err)
		}
		return strings.Contains("\n"+string(raw), "\nfrozen 1\n"), nil
	}
	pids, visitors, err := g.all()
	if err != nil || len(pids) == 0 {
		return len(visitors) > 0, err
	}
	for _, pid := range pids {
		if !stopped(pid) {
			return false, nil
		}
	}
	return true, nil
}

// Thaw lets the processes go on. Safe to repeat.
func (g *Group) Thaw() error {
	if !g.Exists() {
		return nil
	}
	if g.tree.unified != "" {
		return write(g.file("", "cgroup.freeze"), "0")
	}
	pids, _, err := g.all()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cgroup: wake %d of %s: %w", pid, g.path, err)
		}
	}
	return nil
}

// stopped says whether every thread of a process is stopped or gone
// (proc_pid_stat(5), field 3). A process that has ended counts as stopped.
func stopped(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid))
	if err != nil {
		return false // the pattern is well-formed
	}
	for _, task := range tasks {
		raw, err := os.ReadFile(task) // #nosec G304 -- procfs
		if err != nil {
			continue
		}
		if !haltedState(string(raw)) {
			return false
		}
	}
	return true
}

// haltedState reads a line of /proc/PID/stat: whether its state is one in which
// nothing runs. The name before it may hold anything, brackets included.
func haltedState(stat string) bool {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return false
	}
	switch stat[i+2] {
	case 'T', 't', 'Z', 'X', 'x':
		return true
	}
	return false
}
