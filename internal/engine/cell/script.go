package cell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/forked"
	"bulkhead/internal/lookpath"
)

// script is what the child does between fork and exec (internal/forked).
//
// Its descriptors are the container's own from 0 on, then status, then the
// Landlock rule set. All others of the starter's are closed first: a child that
// waits for its command must hold no end of anybody's pipe.
type script struct {
	child  *forked.Script
	room   *forked.Room
	rules  confine.Rules
	report Report
}

// close frees what the starter needs until the fork; it may be called again.
func (s *script) close() {
	if s.rules.FD >= 0 {
		_ = unix.Close(s.rules.FD)
		s.rules.FD = -1
	}
	s.child.Forget()
	_ = s.room.Close()
}

// inbox is the memory of one recvmsg with three descriptors.
type inbox struct {
	head unix.Msghdr
	vec  unix.Iovec
	size forked.Var // of the command that follows
	oob  struct {
		head unix.Cmsghdr
		fds  [3]forked.Var
		_    int32 // up to CMSG_SPACE
	}
}

// sizeBytes is what tells the size of a command: an int32.
const sizeBytes = 4

// goOn is what the starter writes when the child's ids are mapped.
const goOn = 'g'

// write makes the script of a container. The calling thread must be the settled
// one, which sees the final root. status is the child's descriptor.
func (l *launch) write(status int) (_ *script, err error) {
	s := &script{child: &forked.Script{}, rules: confine.None()}
	if s.room, err = forked.NewRoom(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	profile := confine.For(l.spec)
	if l.tree == nil {
		profile.Writable = nil // the paths of a tree that this decoy does not have
	}
	if s.rules, err = profile.Rules(); err != nil {
		return nil, err
	}
	held, err := confine.Held()
	if err != nil {
		return nil, err
	}
	var become *confine.Identity
	if l.mapped() {
		held = confine.Full()
		s.child.Call("wait for the user id map", unix.SYS_READ, status, make([]byte, 1), 1, forked.AtLeast(1))
		confine.WriteIdentity(s.child, l.spec.User.ID, held.Permitted)
	} else {
		become = &confine.Identity{ID: hostID(l.spec)}
	}
	s.child.Call("make a cgroup namespace", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	if h := l.spec.Hostname; h != "" {
		s.child.Call(fmt.Sprintf("set the host name %q", h), unix.SYS_SETHOSTNAME, h, len(h))
	}
	if l.tree != nil && l.spec.Has(engine.MechPIDNS) {
		if err := writeProc(s.child); err != nil {
			return nil, err
		}
	}
	s.child.Call("set the umask", unix.SYS_UMASK, 0o022)
	if slack := engine.TimerSlack(l.spec.Role); slack > 0 {
		s.child.Call("let timers be late", unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, int(slack.Nanoseconds()), 0, 0, 0)
	}
	rules := s.rules
	rules.FD = status + 1
	if s.report, err = profile.Write(s.child, become, held, rules); err != nil {
		return nil, err
	}
	s.child.Mark(status)
	end := s.child
	if l.wait {
		if end, err = forked.NewRest(); err != nil {
			return nil, err
		}
		s.child.Then(end)
		s.writeReceive(end, status)
	}
	// As the container's own user: what it may not enter it shall not get.
	end.Exec(s.room)
	return s, nil
}

// writeReceive adds to end the wait for the command: its size in bytes, which
// comes with stdin, stdout and stderr, then the room's content. When the starter
// goes away before all has come, the child ends.
func (s *script) writeReceive(end *forked.Script, status int) {
	in := forked.Place[inbox](end)
	in.vec.Base = (*byte)(unsafe.Pointer(&in.size)) // #nosec G103 -- the call's own form
	in.vec.SetLen(sizeBytes)
	in.head.Iov = &in.vec
	in.head.SetIovlen(1)
	in.head.Control = (*byte)(unsafe.Pointer(&in.oob)) // #nosec G103 -- the call's own form
	in.head.SetControllen(int(unsafe.Sizeof(in.oob)))
	for i := range in.oob.fds {
		in.oob.fds[i].Set(-1) // what did not come cannot be duplicated
	}
	end.Call("wait for the command", unix.SYS_RECVMSG, status, unsafe.Pointer(&in.head), unix.MSG_CMSG_CLOEXEC, forked.AtLeast(sizeBytes)) // #nosec G103 -- the call's own form
	end.Call("read the command", unix.SYS_RECVFROM, status, s.room.Address(), &in.size, unix.MSG_WAITALL, 0, 0, forked.AtLeastVar(&in.size))
	for i := range in.oob.fds {
		end.Call(fmt.Sprintf("take descriptor %d", i), unix.SYS_DUP3, &in.oob.fds[i], i, 0)
	}
}

// command lays out what to execute.
func (s *script) command(argv, env []string, dir string) ([]byte, error) {
	paths, err := lookpath.Candidates(argv[0], env)
	if err != nil {
		return nil, err
	}
	return forked.Encode(s.room.Address(), paths, argv, env, dir)
}

// descriptors is a script that puts fds where they belong, from 0 on.
// They first move beyond all places, so that none is overwritten.
func descriptors(fds []int, cloexecFrom int) *forked.Script {
	s := &forked.Script{}
	s.Call("make a session", unix.SYS_SETSID)
	beyond := len(fds)
	for _, fd := range fds {
		beyond = max(beyond, fd+1)
	}
	for i, fd := range fds {
		s.Call(fmt.Sprintf("move descriptor %d", i), unix.SYS_DUP3, fd, beyond+i, unix.O_CLOEXEC)
	}
	for i := range fds {
		flags := 0
		if i >= cloexecFrom {
			flags = unix.O_CLOEXEC
		}
		s.Call(fmt.Sprintf("place descriptor %d", i), unix.SYS_DUP3, beyond+i, i, flags)
	}
	s.Call("close all other descriptors", unix.SYS_CLOSE_RANGE, len(fds), ^uint32(0), 0)
	return s
}

// mapped says whether the container has a user namespace of its own.
func (l *launch) mapped() bool { return len(l.spec.User.Map) > 0 && l.spec.Has(engine.MechUserNS) }

// forkScript forks on the settled thread and waits until the command runs, or
// is waited for.
func (l *launch) forkScript(files []*os.File) (_ *Process, err error) {
	first := len(files)
	if l.script == nil {
		if l.script, err = l.write(first); err != nil {
			return nil, err
		}
	}
	s := l.script
	if !l.wait {
		argv := l.spec.Command
		if len(l.spec.Init) > 0 {
			argv = l.spec.Init
		}
		raw, err := s.command(argv, l.spec.Env, l.spec.Dir)
		if err != nil {
			return nil, err
		}
		s.room.Put(raw)
	}
	theirs, err := l.openStatus()
	if err != nil {
		return nil, err
	}
	fds := make([]int, 0, first+2)
	for _, f := range files {
		fds = append(fds, int(f.Fd())) // #nosec G115 -- a descriptor; containers get blocking ones
	}
	fds = append(fds, int(theirs.Fd())) // #nosec G115 -- a descriptor
	if s.rules.FD >= 0 {
		fds = append(fds, s.rules.FD)
	}
	all := descriptors(fds, first)
	all.Append(s.child)
	s.child = all // its records name steps of the whole
	group := -1
	if l.groupDir != nil {
		group = int(l.groupDir.Fd()) // #nosec G115 -- a descriptor
	}
	if l.mapped() {
		if err := becomeOwner(ownerID(l.spec)); err != nil {
			return nil, errors.Join(err, theirs.Close())
		}
	}
	pid, pidfd, err := forked.Fork(all, first, l.namespaces(), group)
	runtime.KeepAlive(files)
	_ = theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("clone into the namespaces of role %s: %w", l.spec.Role, err)
	}
	return l.settled(pid, pidfd)
}

// settled maps the child's ids, reads its report and takes it over.
func (l *launch) settled(pid, pidfd int) (*Process, error) {
	proc, err := os.FindProcess(pid) // it is ours and not reaped, so the number is its own
	if err != nil {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		_, werr := unix.Wait4(pid, nil, 0, nil)
		return nil, errors.Join(err, werr, unix.Close(pidfd))
	}
	if l.mapped() {
		err = l.mapIDs(pid)
	}
	if err == nil && l.wait {
		err = l.script.child.ReadMark(l.status)
		l.script.close() // the child has its own
	} else if err == nil {
		err = l.explain(l.script.child.ReadExec(l.status), l.spec.Command, l.spec.Env)
	}
	if err != nil {
		_ = proc.Kill()
		_, werr := proc.Wait()
		return nil, errors.Join(err, werr, unix.Close(pidfd))
	}
	return l.watch(proc, pidfd, l.script.report)
}

// mapIDs maps the child's user and group ids and lets it go on.
func (l *launch) mapIDs(pid int) error {
	var text strings.Builder
	for _, m := range l.spec.User.Map {
		fmt.Fprintf(&text, "%d %d 1\n", m.Inside, m.Host)
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		path := fmt.Sprintf("/proc/%d/%s", pid, name)
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cell: %s: %w", path, err)
		}
		// The kernel takes a map with one write (user_namespaces(7)).
		_, err = unix.Write(fd, []byte(text.String()))
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("cell: write %s: %w", path, err)
		}
	}
	if _, err := l.status.Write([]byte{goOn}); err != nil {
		// It has failed before; its report says how.
		if rerr := l.script.child.ReadExec(l.status); rerr != nil {
			return rerr
		}
		return fmt.Errorf("cell: let the child go on: %w", err)
	}
	return nil
}

// order sends a waiting child its command and reads until it runs.
func (l *launch) order(c Command) error {
	raw, err := l.script.command(c.Argv, nonNil(c.Env), c.Dir)
	if err != nil {
		return err
	}
	fds := make([]int, 0, 3)
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		fds = append(fds, int(f.Fd())) // #nosec G115 -- a descriptor; containers get blocking ones
	}
	// All at once, if it fits: each message would wake the child.
	raw = append(binary.NativeEndian.AppendUint32(make([]byte, 0, sizeBytes+len(raw)), uint32(len(raw))), raw...) // #nosec G115 -- at most forked.RoomSize
	n, err := unix.SendmsgN(l.statusFD, raw, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
	runtime.KeepAlive(c)
	if err == nil && n < len(raw) {
		_, err = l.status.Write(raw[n:])
	}
	if err != nil {
		return fmt.Errorf("send the command: %w", err)
	}
	return l.explain(l.script.child.ReadExec(l.status), c.Argv, c.Env)
}

// CommandError says that everything was ready and the command could not be
// started.
type CommandError struct{ err error }

func (e *CommandError) Error() string { return e.err.Error() }

// Unwrap gives the reason.
func (e *CommandError) Unwrap() error { return e.err }

// explain names the command when it was the exec that failed.
func (l *launch) explain(err error, argv, env []string) error {
	var step *forked.StepError
	if !errors.As(err, &step) || !step.Exec {
		return err
	}
	if errors.Is(step.Err, unix.ENOENT) && !strings.Contains(argv[0], "/") {
		return &CommandError{lookpath.NotFound(argv[0], env)}
	}
	return &CommandError{fmt.Errorf("run %s: %w", argv[0], step.Err)}
}

// openStatus makes the way by which a child reports and is told to go on. Our
// end goes to the poller: a read that blocks would keep the runtime watching
// its thread while the child wants the processor.
func (l *launch) openStatus() (theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "status") // #nosec G115 -- a descriptor
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, errors.Join(fmt.Errorf("status socket: %w", err), unix.Close(fds[0]), theirs.Close())
	}
	l.statusFD = fds[0]
	l.status = l.own(os.NewFile(uintptr(fds[0]), "status")) // #nosec G115 -- a descriptor
	return theirs, nil
}
