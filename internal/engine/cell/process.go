package cell

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
)

// Exit is how a process ended.
type Exit struct {
	Code   int    `json:"code"`             // 128+signal when it was killed
	Signal string `json:"signal,omitempty"` // "killed", "terminated", …
	OOM    bool   `json:"oom,omitempty"`    // the kernel killed something of this cgroup for memory
}

func (e Exit) String() string {
	s := fmt.Sprintf("exit code %d", e.Code)
	if e.Signal != "" {
		s = "signal " + e.Signal
	}
	if e.OOM {
		s += " (out of memory)"
	}
	return s
}

// Identity pins down one process so that a later reader can tell whether the
// number still means the same process.
type Identity struct {
	PID    int    `json:"pid"`    // as seen from the reader's PID namespace
	Start  uint64 `json:"start"`  // field 22 of /proc/PID/stat, clock ticks since boot
	UID    uint32 `json:"uid"`    // real user id as the initial user namespace numbers it
	Cgroup string `json:"cgroup"` // cgroup.Group.Full; empty: not checked
}

// Process is one running container.
type Process struct {
	pid    int
	pidfd  *os.File
	start  uint64
	group  *cgroup.Group
	held   []*os.File // namespaces that are slow to take apart, until Cleanup
	report Report
	done   chan struct{} // closed when exit is set
	exit   Exit
	err    error
}

// PID is the container's first process in the starter's PID namespace.
func (p *Process) PID() int { return p.pid }

// PIDFD refers to that process and nothing else. It stays open until [Process.Wait]
// returned and Close was called; callers do not close it.
func (p *Process) PIDFD() *os.File { return p.pidfd }

// StartTime is field 22 of /proc/PID/stat.
func (p *Process) StartTime() uint64 { return p.start }

// Report says what is in force, as it was read back before the command ran.
func (p *Process) Report() Report { return p.report }

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until the process has ended. Any number of callers may wait.
func (p *Process) Wait() (Exit, error) {
	<-p.done
	return p.exit, p.err
}

// Signal sends a signal to the first process only.
func (p *Process) Signal(s unix.Signal) error {
	err := unix.PidfdSendSignal(int(p.pidfd.Fd()), s, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cell: signal %v to %d: %w", s, p.pid, err)
	}
	return nil
}

// Kill ends every process of the container's cgroup, so nothing that the
// container forked or hid in a session of its own is left.
func (p *Process) Kill() error {
	if p.group == nil {
		return p.Signal(unix.SIGKILL)
	}
	// The first process takes its whole PID namespace along; the cgroup then
	// holds whatever had no such namespace.
	_ = p.Signal(unix.SIGKILL)
	return p.group.Kill(5 * time.Second)
}

// Cleanup waits for the end and removes the cgroup; the pidfd stays open.
func (p *Process) Cleanup() error {
	<-p.done
	var err error
	for _, f := range p.held {
		if e := f.Close(); !errors.Is(e, os.ErrClosed) { // Close cleans up as well
			err = errors.Join(err, e)
		}
	}
	if p.group == nil {
		return err
	}
	return errors.Join(err, p.group.Remove())
}

// Close waits for the end and frees descriptor and cgroup.
func (p *Process) Close() error {
	return errors.Join(p.Cleanup(), p.pidfd.Close())
}

// Same says whether id.PID is still the process that id was taken from: start
// time, user id and, when given, cgroup. A nil error means yes; the error says
// what differs. proc is where procfs is mounted, usually "/proc".
func Same(proc string, id Identity) error {
	start, err := startTime(proc, id.PID)
	if err != nil {
		return err
	}
	if start != id.Start {
		return fmt.Errorf("cell: process %d started at tick %d, not %d: the number was used again", id.PID, start, id.Start)
	}
	uid, err := realUID(proc, id.PID)
	if err != nil {
		return err
	}
	if uid != id.UID {
		return fmt.Errorf("cell: process %d has user id %d, not %d", id.PID, uid, id.UID)
	}
	if id.Cgroup == "" {
		return nil
	}
	raw, err := os.ReadFile(fmt.Sprintf("%s/%d/cgroup", proc, id.PID)) // #nosec G304 -- procfs
	if err != nil {
		return fmt.Errorf("cell: cgroup of process %d: %w", id.PID, err)
	}
	if !inGroup(string(raw), id.Cgroup) {
		return fmt.Errorf("cell: process %d is not in cgroup %s", id.PID, id.Cgroup)
	}
	return nil
}

// inGroup looks for a path in /proc/PID/cgroup, lines of "id:controllers:path".
func inGroup(text, full string) bool {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(parts) == 3 && parts[2] == full {
			return true
		}
	}
	return false
}

// Identify takes the identity of a running process.
func Identify(proc string, pid int) (Identity, error) {
	start, err := startTime(proc, pid)
	if err != nil {
		return Identity{}, err
	}
	uid, err := realUID(proc, pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, Start: start, UID: uid}, nil
}

// startTime reads field 22 of /proc/PID/stat (proc_pid_stat(5)). The second
// field is the command's name in brackets and may hold anything, so fields
// are counted after the last bracket.
func startTime(proc string, pid int) (uint64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", proc, pid)) // #nosec G304 -- procfs
	if err != nil {
		return 0, fmt.Errorf("cell: start time of process %d: %w", pid, err)
	}
	return parseStartTime(string(raw))
}

func parseStartTime(stat string) (uint64, error) {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, errors.New("cell: /proc/PID/stat has no command name")
	}
	fields := strings.Fields(stat[i+1:])
	const startField = 22 - 3 // the first field after the name is number 3
	if len(fields) <= startField {
		return 0, fmt.Errorf("cell: /proc/PID/stat has only %d fields", len(fields)+2)
	}
	n, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cell: /proc/PID/stat start time: %w", err)
	}
	return n, nil
}

func realUID(proc string, pid int) (uint32, error) {
	raw, err := os.ReadFile(fmt.Sprintf("%s/%d/status", proc, pid)) // #nosec G304 -- procfs
	if err != nil {
		return 0, fmt.Errorf("cell: user id of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			fields := strings.Fields(rest)
			if len(fields) == 0 {
				break
			}
			n, err := strconv.ParseUint(fields[0], 10, 32)
			if err != nil {
				return 0, fmt.Errorf("cell: user id of process %d: %w", pid, err)
			}
			return uint32(n), nil
		}
	}
	return 0, fmt.Errorf("cell: /proc/%d/status names no user id", pid)
}

// reap waits for the first process and records how it ended.
func (p *Process) reap(proc *os.Process, oomBefore int64) {
	defer close(p.done)
	awaitEnd(p.pidfd)
	st, err := proc.Wait()
	if err != nil {
		p.err = fmt.Errorf("cell: wait for %d: %w", p.pid, err)
		return
	}
	ws, ok := st.Sys().(syscall.WaitStatus)
	if !ok {
		p.err = fmt.Errorf("cell: wait for %d: no wait status", p.pid)
		return
	}
	p.exit = exitOf(ws)
	if p.group != nil {
		if after, err := p.group.OOMKills(); err == nil && after > oomBefore {
			p.exit.OOM = true
		}
	}
}

// awaitEnd returns once a process has ended. wait(2) alone would not do: whoever
// traces it from this very program (prove reads filters that way) makes it stop,
// and every wait for a tracee of one's own takes a stop for news.
func awaitEnd(pidfd *os.File) {
	fds := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}} // #nosec G115 -- a descriptor
	for {
		n, err := unix.Poll(fds, -1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func exitOf(ws syscall.WaitStatus) Exit {
	if ws.Signaled() {
		return Exit{Code: 128 + int(ws.Signal()), Signal: ws.Signal().String()}
	}
	return Exit{Code: ws.ExitStatus()}
}
