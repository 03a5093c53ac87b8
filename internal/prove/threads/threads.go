package threads

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/prove/filter"
	"bulkhead/internal/thread"
)

// Thread is one thread and its filters, the newest first. None means that it
// may call everything.
type Thread struct {
	ID      int
	Filters []filter.Program
}

// Bounds of what is read.
const (
	maxThreads = 4096
	maxFilters = 64
	// stopPatience is how long a thread may take to stop: one in an
	// uninterruptible sleep does not.
	stopPatience = 2 * time.Second
	// turnPatience is how long another reader may have a thread: a thread has
	// one tracer at a time, and the warden reads after each change while its
	// operator asks too.
	turnPatience = 5 * time.Second
)

// ErrGone says that the process ended meanwhile.
var ErrGone = errors.New("threads: the process ended")

// Of reads every thread of a process. Threads that begin meanwhile are read
// too: the list is taken again until no new one comes.
func Of(pid int) ([]Thread, error) {
	// A tracer is a thread. It ends with this: a thread that died while it was
	// traced stays a zombie for as long as its tracer lives, and whoever started
	// its process would wait for it until then.
	var out []Thread
	var err error
	thread.Run(func() { out, err = all(pid) })
	return out, err
}

func all(pid int) ([]Thread, error) {
	seen := map[int]bool{}
	var out []Thread
	for {
		ids, err := list(pid)
		if err != nil {
			return nil, err
		}
		grew := false
		for _, id := range ids {
			if seen[id] {
				continue
			}
			seen[id], grew = true, true
			filters, err := filtersOf(id)
			if errors.Is(err, unix.ESRCH) {
				continue // this thread has ended
			}
			if err != nil {
				return nil, fmt.Errorf("threads: thread %d of process %d: %w", id, pid, err)
			}
			out = append(out, Thread{ID: id, Filters: filters})
		}
		if len(seen) > maxThreads {
			return nil, fmt.Errorf("threads: process %d has more than %d threads", pid, maxThreads)
		}
		if !grew {
			if len(out) == 0 {
				return nil, ErrGone
			}
			return out, nil
		}
	}
}

func list(pid int) ([]int, error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("threads: process %d: %w", pid, err)
	}
	var out []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("threads: process %d: %w", pid, err)
		}
		out = append(out, n)
	}
	return out, nil
}

// filtersOf stops one thread, copies its filters and lets it go on. The caller
// keeps to one thread of its own.
func filtersOf(id int) (out []filter.Program, err error) {
	if err := attach(id); err != nil {
		return nil, err
	}
	var signal uintptr
	defer func() {
		// One that has ended cannot be; it is let go of with this thread.
		if e := detach(id, signal); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("detach: %w", e))
		}
	}()
	if err := ptrace(unix.PTRACE_INTERRUPT, id, 0, nil); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	if signal, err = awaitStop(id); err != nil {
		return nil, err
	}
	for i := range maxFilters {
		p, err := get(id, i)
		if errors.Is(err, unix.ENOENT) {
			return out, nil
		}
		if errors.Is(err, unix.EINVAL) && i == 0 {
			return nil, nil // it is in no filter mode
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return nil, fmt.Errorf("it has more than %d filters", maxFilters)
}

// attach waits for its turn when another tracer has the thread.
func attach(id int) error {
	for end := time.Now().Add(turnPatience); ; {
		err := ptrace(unix.PTRACE_SEIZE, id, 0, nil)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EPERM):
			return fmt.Errorf("attach: %w", err)
		case ended(id):
			// What waits to be reaped is refused with the same number.
			return unix.ESRCH
		case time.Now().After(end):
			return fmt.Errorf("attach: %w (traced by thread %s)", err, tracer(id))
		default:
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// tracer names the thread that traces another one; "0" is nobody.
func tracer(id int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", id)) // #nosec G304 -- procfs
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(raw)) {
		if after, ok := strings.CutPrefix(line, "TracerPid:"); ok {
			return strings.TrimSpace(after)
		}
	}
	return "unknown"
}

// awaitStop waits until a thread has stopped. It may do so with a signal that
// came at the same moment, which is its own to have: [detach] gives it back.
func awaitStop(id int) (signal uintptr, err error) {
	for end := time.Now().Add(stopPatience); ; {
		// Only stops are waited for: the end of a child of our own is for whoever
		// started it.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, id, &info, unix.WSTOPPED|unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return 0, unix.ESRCH
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case info.Signo != 0:
			return deliveredBy(&info), nil
		case ended(id):
			return 0, unix.ESRCH
		case time.Now().After(end):
			return 0, fmt.Errorf("it does not stop within %s", stopPatience)
		default:
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// deliveredBy gives the signal with which a tracee has stopped. One that stopped
// because it was told to, or whose whole process is stopped, stopped with an
// event in the second byte and no signal (ptrace(2), PTRACE_EVENT_STOP).
func deliveredBy(info *unix.Siginfo) uintptr {
	// siginfo_t as waitid(2) fills it in: si_status follows si_pid and si_uid, the
	// first of its union.
	type child struct {
		signo, errno, code, _ int32
		pid                   int32
		uid                   uint32
		status                int32
	}
	status := (*child)(unsafe.Pointer(info)).status // #nosec G103 -- smaller than siginfo_t
	if status>>8 != 0 {
		return 0
	}
	return uintptr(status) // #nosec G115 -- a signal's number
}

// detach lets a thread go on, with the signal that it stopped for.
func detach(id int, signal uintptr) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(id), 0, signal, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// ended says whether a thread is gone, or waits to be reaped.
func ended(id int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id)) // #nosec G304 -- procfs
	if err != nil {
		return true
	}
	i := bytes.LastIndexByte(raw, ')') // the command's name may hold anything
	return i < 0 || len(raw) < i+3 || raw[i+2] == 'Z' || raw[i+2] == 'X'
}

// get copies one filter; the kernel says how many instructions it has.
func get(id, i int) (filter.Program, error) {
	n, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(id), uintptr(i), 0, 0, 0)
	if e != 0 {
		return nil, fmt.Errorf("filter %d: %w", i, e)
	}
	const size = 8 // struct sock_filter
	if n == 0 || n > 4096 {
		return nil, fmt.Errorf("filter %d has %d instructions", i, n)
	}
	buf := make([]byte, n*size)
	if err := ptrace(unix.PTRACE_SECCOMP_GET_FILTER, id, uintptr(i), unsafe.Pointer(&buf[0])); err != nil { // #nosec G103 -- a buffer of the size that the kernel named
		return nil, fmt.Errorf("filter %d: %w", i, err)
	}
	return filter.Parse(buf)
}

func ptrace(request, id int, addr uintptr, data unsafe.Pointer) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(id), addr, uintptr(data), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}
