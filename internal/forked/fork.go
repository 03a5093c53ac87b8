package forked

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The runtime's hooks around fork, which block signals and, in the child, take
// the handlers away. They are the syscall package's; the runtime promises to
// keep them for others (runtime/proc.go, "hall of shame").

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// cloneArgs is struct clone_args (clone(2)).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// order is what fork reads and writes, all in one place in memory.
type order struct {
	args   cloneArgs
	fd     int32    // the pidfd
	failed [2]int32 // the record of a failure
	status uintptr
}

// Fork makes a child with the given namespaces and runs s in it. status is the
// descriptor, in the child when it has done its first steps, that a failure is
// reported on. cgroup is the folder of a version 2 group, or below 0. The
// caller reaps the child and closes pidfd.
func Fork(s *Script, status int, flags uintptr, cgroup int) (pid, pidfd int, err error) {
	if len(s.steps) == 0 || s.outside != nil {
		return 0, -1, errors.New("forked: an empty script, or the rest of one")
	}
	order := order{status: uintptr(status), fd: -1, args: cloneArgs{flags: uint64(flags) | unix.CLONE_PIDFD, exitSignal: uint64(syscall.SIGCHLD)}} // #nosec G115 -- a descriptor
	if cgroup >= 0 {
		order.args.flags |= unix.CLONE_INTO_CGROUP
		order.args.cgroup = uint64(cgroup)
	}
	rest, err := s.prepareRest(len(s.steps))
	if err != nil {
		return 0, -1, err
	}
	n, e := fork(s.steps, rest, &order)
	runtime.KeepAlive(s)
	if e != 0 {
		return 0, -1, e
	}
	return int(n), int(order.fd), nil // #nosec G115 -- a process id
}

// Perform carries the script out in the calling thread, which must be locked to
// its goroutine.
func (s *Script) Perform() error {
	var failed [2]int32
	done := perform(s.steps, 0, &failed)
	runtime.KeepAlive(s)
	if done {
		return nil
	}
	return &StepError{What: s.names[failed[0]].what, Exec: s.names[failed[0]].exec, Err: syscall.Errno(failed[1])} // #nosec G115 -- an errno
}

// fork is the only function that runs in both processes.
//
//go:noinline
//go:norace
func fork(steps []step, r *rest, o *order) (pid uintptr, e syscall.Errno) {
	beforeFork()
	// Not before: the stack, on which it may lie, moves no more.
	args := &o.args
	args.pidfd = uint64(uintptr(unsafe.Pointer(&o.fd))) // #nosec G103 -- the call's own form
	if args.cgroup != 0 {
		pid, _, e = syscall.RawSyscall6(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0, 0, 0, 0) // #nosec G103 -- the call's own form
	} else {
		// What sandboxes refuse clone3 let this pass. The third argument is
		// where the pidfd goes, on amd64 and arm64 alike.
		pid, _, e = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(args.flags|args.exitSignal), 0, uintptr(args.pidfd), 0, 0, 0)
	}
	if e != 0 || pid != 0 {
		afterFork()
		return pid, e
	}
	afterForkInChild()
	status, failed := o.status, &o.failed
	if perform(steps, 0, failed) && r != nil {
		// From here on neither steps nor o is there.
		failed = &r.failed
		if e = shed(r, uintptr(unsafe.Pointer(&e))); e != 0 { // #nosec G103 -- about where the stack is
			failed[0], failed[1] = r.base, int32(e) // #nosec G115 -- an errno
		} else {
			perform(r.steps[:r.n], r.base+1, failed)
		}
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, status, uintptr(unsafe.Pointer(failed)), recordSize) // #nosec G103 -- the record
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 125, 0, 0)
	}
}

// perform carries out the steps and says whether all went well. base is the
// first one's index in records.
//
//go:nosplit
//go:norace
func perform(steps []step, base int32, failed *[2]int32) bool {
	for i := range steps {
		s := &steps[i]
		var e syscall.Errno
		ok := true
		switch s.kind {
		case kindHolds:
			ok = holds(s)
		case kindExec:
			e = execute(s)
			ok = e == 0
		case kindCall:
			e, ok = call(s)
		}
		if !ok {
			failed[0], failed[1] = base+int32(i), int32(e) // #nosec G115 -- small
			return false
		}
	}
	return true
}

//go:nosplit
//go:norace
func call(s *step) (syscall.Errno, bool) {
	if s.load != nil && s.loadAt >= 0 && s.loadAt < int8(len(s.args)) {
		s.args[s.loadAt] = uintptr(*s.load) // #nosec G115 -- a descriptor
	}
	var r uintptr
	var e syscall.Errno
	for {
		r, _, e = syscall.RawSyscall6(s.nr, s.args[0], s.args[1], s.args[2], s.args[3], s.args[4], s.args[5])
		if e != syscall.EINTR {
			break
		}
	}
	if e != 0 {
		for i := range s.allow {
			if s.allow[i] == e {
				return 0, true
			}
		}
		return e, false
	}
	if s.save != nil {
		*s.save = int32(r) // #nosec G115 -- a descriptor or a length
	}
	if s.leastVar != nil {
		return 0, *s.leastVar >= 0 && r >= uintptr(*s.leastVar) // #nosec G115 -- not below 0
	}
	return 0, r >= s.least
}

//go:nosplit
//go:norace
func holds(s *step) bool {
	n := int(*s.load)
	if n < 0 || n > len(s.text) {
		return false
	}
	for at := 0; at+len(s.want) <= n; at++ {
		same := true
		for i := range s.want {
			if s.text[at+i] != s.want[i] {
				same = false
				break
			}
		}
		if same {
			return true
		}
	}
	return false
}

//go:nosplit
//go:norace
func execute(s *step) syscall.Errno {
	if s.nr == syscall.SYS_CHDIR {
		_, _, e := syscall.RawSyscall(syscall.SYS_CHDIR, s.room[headDir], 0, 0)
		return e
	}
	last := syscall.ENOENT
	for i := headSize / 8; ; i++ {
		if i >= len(s.room) || s.room[i] == 0 {
			return last
		}
		_, _, last = syscall.RawSyscall(syscall.SYS_EXECVE, s.room[i], s.room[headArgv], s.room[headEnv])
		if last != syscall.ENOENT && last != syscall.ENOTDIR && last != syscall.EACCES {
			return last
		}
	}
}
