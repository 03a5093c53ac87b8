package cell

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell/stage2"
)

// Start starts one container and returns when its command runs: exec has
// happened, with everything in force. It may be called concurrently. The
// caller must be root in the initial user namespace.
func Start(spec engine.Spec, opt Options) (*Process, error) {
	if err := errors.Join(checkOurs(&spec), Check(&spec)); err != nil {
		return nil, err
	}
	if (len(spec.Init) > 0) != (opt.Shim != nil) {
		return nil, fmt.Errorf("cell: container %s: a shim configuration belongs to a Spec with Init, and to no other", spec.Name)
	}
	if opt.Control != nil && opt.Shim == nil {
		return nil, fmt.Errorf("cell: container %s: a control listener needs a shim", spec.Name)
	}
	l := &launch{spec: &spec, opt: &opt}
	defer l.close()
	if err := l.prepare(); err != nil {
		return nil, errors.Join(err, l.removeGroup())
	}
	p, err := l.run()
	if err != nil {
		return nil, fmt.Errorf("cell: start %s/%s/%s: %w", spec.Team, spec.Agent, spec.Name, errors.Join(err, l.removeGroup()))
	}
	return p, nil
}

func (l *launch) removeGroup() error {
	if l.group == nil {
		return nil
	}
	return l.group.Remove()
}

// launch is one start in progress.
type launch struct {
	spec  *engine.Spec
	opt   *Options
	group *cgroup.Group
	tree  *tree
	files []*os.File // closed when the start is over; not the caller's
	// wait lets stage 2 wait for its command on conn, once all is in force.
	wait bool
	conn *net.UnixConn

	program  *os.File // stage 2's
	groupDir *os.File // of the cgroup, version 2 only
	oom      int64    // kills in the cgroup before the start
}

func (l *launch) own(f *os.File) *os.File {
	l.files = append(l.files, f)
	return f
}

func (l *launch) close() {
	for _, f := range l.files {
		_ = f.Close()
	}
	if l.tree != nil {
		l.tree.close()
	}
}

// prepare makes what needs no child: cgroup and mounts.
func (l *launch) prepare() (err error) {
	if l.opt.Cgroups != nil {
		lim := l.spec.Limits.WithDefaults()
		l.group, err = l.opt.Cgroups.Create(l.spec.Cgroup, cgroup.Limits{MemoryBytes: lim.MemoryBytes, MilliCPU: lim.MilliCPU, PIDs: lim.PIDs})
		if err != nil {
			return err
		}
	}
	if l.group != nil {
		if l.oom, err = l.group.OOMKills(); err != nil {
			return err
		}
	}
	if l.spec.Role == engine.RoleAccount {
		return nil
	}
	// The container's user may not reach the program's folder, so it is run by
	// descriptor.
	program, err := os.Open(l.opt.Program)
	if err != nil {
		return fmt.Errorf("cell: stage 2 program: %w", err)
	}
	l.program = l.own(program)
	if l.spec.Has(engine.MechMountNS) {
		l.tree, err = makeTree(l.spec)
	}
	return err
}

// memfd makes a sealed file in memory: nobody can change it any more.
func memfd(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), name) // #nosec G115 -- a descriptor
	if _, err := f.Write(content); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return nil, errors.Join(fmt.Errorf("seal: %w", err), f.Close())
	}
	return f, nil
}

// Sealed makes a sealed file in memory for passing secrets and configuration
// to a container: it cannot be changed, has no path and ends with its last
// descriptor.
func Sealed(name string, content []byte) (*os.File, error) {
	f, err := memfd(name, content)
	if err != nil {
		return nil, fmt.Errorf("cell: sealed file %s: %w", name, err)
	}
	return f, nil
}

// containerFiles lists what the container sees from descriptor 0 on.
func (l *launch) containerFiles() ([]*os.File, error) {
	var out []*os.File
	for _, f := range []*os.File{l.opt.Stdin, l.opt.Stdout, l.opt.Stderr} {
		if f == nil {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				return nil, err
			}
			f = l.own(null)
		}
		out = append(out, f)
	}
	if l.opt.Shim != nil {
		cfg := *l.opt.Shim
		if l.spec.Has(engine.MechLandlock) {
			cfg.Landlock = min(confine.LandlockABI(), confine.WantedABI)
		}
		cfg.PassFiles = len(l.opt.Files)
		if cfg.Command == nil {
			cfg.Command, cfg.Dir = l.spec.Command, l.spec.Dir
		}
		raw, err := json.Marshal(cfg)
		if err != nil {
			return nil, err
		}
		f, err := memfd("shim", raw)
		if err != nil {
			return nil, err
		}
		out = append(out, l.own(f))
		control, err := l.controlFile()
		if err != nil {
			return nil, err
		}
		out = append(out, control)
	}
	return append(out, l.opt.Files...), nil
}

// controlFile is descriptor 4: the control listener, or /dev/null when the
// shim has none.
func (l *launch) controlFile() (*os.File, error) {
	if l.opt.Control == nil {
		f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		return l.own(f), nil
	}
	f, err := l.opt.Control.File()
	if err != nil {
		return nil, fmt.Errorf("control listener: %w", err)
	}
	return l.own(f), nil
}

// run forks from a thread of its own, which is thrown away: it may have left
// the host's network namespace, or joined the container's cgroup.
func (l *launch) run() (*Process, error) {
	type result struct {
		p   *Process
		err error
	}
	done := make(chan result)
	go onOwnThread(func() {
		err := l.settle()
		var p *Process
		if err == nil {
			p, err = l.fork()
		}
		done <- result{p, err}
	})
	r := <-done
	return r.p, r.err
}

// onOwnThread runs f on a thread that ends with it. The main thread never
// ends and is what /proc/self shows, so when the scheduler offers that one, it
// is held while another is asked for.
func onOwnThread(f func()) {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
}

// settle makes the calling thread one whose children are born in the
// container's network namespace and cgroup.
func (l *launch) settle() error {
	s := l.spec
	if s.Role != engine.RoleAccount && !s.Network.Host && s.Has(engine.MechNetNS) {
		if err := makeNetwork(s.Network); err != nil {
			return err
		}
	}
	if err := l.join(); err != nil {
		return err
	}
	if l.tree != nil {
		return l.tree.enter() // last: no path of the host is in sight after it
	}
	return nil
}

// join makes sure that children are born in the cgroup.
func (l *launch) join() error {
	if l.group == nil {
		return nil
	}
	if !l.opt.Cgroups.Unified() {
		return l.group.JoinThread()
	}
	dir, err := l.group.Open()
	if err != nil {
		return err
	}
	l.groupDir = l.own(dir)
	return nil
}

// fork runs on a settled thread.
func (l *launch) fork() (*Process, error) {
	files, err := l.containerFiles()
	if err != nil {
		return nil, err
	}
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if l.groupDir != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(l.groupDir.Fd()) // #nosec G115 -- a descriptor
	}
	if l.spec.Role == engine.RoleAccount {
		return l.forkAccount(files, sys, &pidfd)
	}
	return l.forkStage2(files, sys, &pidfd)
}

// forkAccount starts a process of the bare account: its ids, in the starter's
// namespaces, and nothing else.
func (l *launch) forkAccount(files []*os.File, sys *syscall.SysProcAttr, pidfd *int) (*Process, error) {
	sys.Credential = &syscall.Credential{Uid: l.spec.User.ID, Gid: l.spec.User.ID}
	path, err := stage2.LookPath(l.spec.Command[0], l.spec.Env)
	if err != nil {
		return nil, err
	}
	proc, err := os.StartProcess(path, l.spec.Command, &os.ProcAttr{Dir: l.spec.Dir, Env: nonNil(l.spec.Env), Files: files, Sys: sys})
	if err != nil {
		return nil, err
	}
	return l.watch(proc, *pidfd, Report{})
}

// nonNil keeps os.StartProcess from handing down our own environment.
func nonNil(env []string) []string {
	if env == nil {
		return []string{}
	}
	return env
}

func (l *launch) forkStage2(files []*os.File, sys *syscall.SysProcAttr, pidfd *int) (*Process, error) {
	s := l.spec
	l.namespaces(sys)
	first := len(files)
	plan := l.plan()
	if plan.Profile.Seccomp {
		filter, err := confine.ForRole(s.Role)
		if err != nil {
			return nil, err
		}
		plan.Profile.Program = filter.Marshal()
	}
	raw, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	planFile, err := memfd("plan", raw)
	if err != nil {
		return nil, err
	}
	l.own(planFile)
	statusR, statusW, err := l.statusPair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = statusW.Close() }()
	all := slices.Concat(files, []*os.File{planFile, statusW, l.program})
	if sys.Cloneflags&unix.CLONE_NEWUSER != 0 {
		if err := becomeOwner(ownerID(s)); err != nil {
			return nil, err
		}
	}
	path := "/proc/self/fd/" + strconv.Itoa(first+2)
	proc, err := os.StartProcess(path, []string{"bulkhead-shim", "stage2", strconv.Itoa(first)},
		&os.ProcAttr{Env: []string{"GOMAXPROCS=1", "GOGC=off"}, Files: all, Sys: sys})
	if err != nil {
		return nil, fmt.Errorf("clone into the namespaces of role %s: %w", s.Role, err)
	}
	_ = statusW.Close()
	read := readReport
	if l.wait {
		read = readFirst
	}
	report, err := read(statusR)
	if err != nil {
		_ = proc.Kill()
		_, werr := proc.Wait()
		_ = unix.Close(*pidfd)
		return nil, errors.Join(err, werr)
	}
	return l.watch(proc, *pidfd, report)
}

// namespaces fills in clone flags and ids.
func (l *launch) namespaces(sys *syscall.SysProcAttr) {
	s := l.spec
	sys.Cloneflags = unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if s.Has(engine.MechMountNS) {
		sys.Cloneflags |= unix.CLONE_NEWNS
	}
	if s.Has(engine.MechPIDNS) {
		sys.Cloneflags |= unix.CLONE_NEWPID
	}
	if len(s.User.Map) == 0 || !s.Has(engine.MechUserNS) {
		return // stage 2 runs as real root and becomes the host id
	}
	sys.Cloneflags |= unix.CLONE_NEWUSER
	for _, m := range s.User.Map {
		id := syscall.SysProcIDMap{ContainerID: int(m.Inside), HostID: int(m.Host), Size: 1}
		sys.UidMappings = append(sys.UidMappings, id)
		sys.GidMappings = append(sys.GidMappings, id)
	}
	// So that the starter's supplementary groups can be dropped.
	sys.GidMappingsEnableSetgroups = true
	sys.Credential = &syscall.Credential{Uid: s.User.ID, Gid: s.User.ID}
	for m := confine.AllCaps(); m != 0; m &= m - 1 {
		sys.AmbientCaps = append(sys.AmbientCaps, uintptr(bits.TrailingZeros64(m))) // #nosec G115 -- below 64
	}
}

// plan describes stage 2's work.
func (l *launch) plan() stage2.Plan {
	s := l.spec
	p := stage2.Plan{
		Argv: s.Command, Env: nonNil(s.Env), Dir: s.Dir, Hostname: s.Hostname,
		CgroupNamespace: true, Wait: l.wait, Profile: confine.For(s),
	}
	if len(s.Init) > 0 {
		p.Argv = s.Init
	}
	if len(s.User.Map) == 0 || !s.Has(engine.MechUserNS) {
		p.Become = &confine.Identity{ID: hostID(s)}
	}
	if l.tree == nil {
		p.Profile.Writable = nil // the paths of a tree that this decoy does not have
	}
	p.Proc = l.tree != nil && s.Has(engine.MechPIDNS)
	return p
}

// statusPair makes the way by which stage 2 reports: a pipe, or a socket when
// orders go the other way.
func (l *launch) statusPair() (ours io.Reader, theirs *os.File, err error) {
	if !l.wait {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		return l.own(r), w, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("status socket: %w", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "status")  // #nosec G115 -- a descriptor
	theirs = os.NewFile(uintptr(fds[1]), "status") // #nosec G115 -- a descriptor
	c, err := net.FileConn(mine)
	_ = mine.Close()
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	l.conn = c.(*net.UnixConn)
	return l.conn, theirs, nil
}

// readFirst reads one report, of a stage 2 that waits for its order then.
func readFirst(r io.Reader) (Report, error) {
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil && len(line) == 0 {
		return Report{}, errors.New("stage 2 ended without a word")
	}
	return readReport(bytes.NewReader(line))
}

// readReport reads until exec, or the end of stage 2, closes the pipe.
func readReport(r io.Reader) (Report, error) {
	raw, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return Report{}, fmt.Errorf("stage 2's status: %w", err)
	}
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	if len(raw) == 0 {
		return Report{}, errors.New("stage 2 ended without a word (killed, or its memory limit is too small to start)")
	}
	var last stage2.Report
	if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil {
		return Report{}, fmt.Errorf("stage 2's status %q: %w", raw, err)
	}
	if last.Error != "" {
		return Report{}, errors.New(last.Error)
	}
	return last.Result, nil
}

// watch takes over a running process.
func (l *launch) watch(proc *os.Process, pidfd int, report Report) (*Process, error) {
	p := &Process{pid: proc.Pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), group: l.group, report: report, done: make(chan struct{})} // #nosec G115 -- a descriptor
	// The process cannot be reaped before Wait below, so the number is its own.
	start, err := startTime("/proc", proc.Pid)
	if err != nil {
		_ = proc.Kill()
		_, _ = proc.Wait()
		return nil, errors.Join(err, p.pidfd.Close())
	}
	p.start = start
	go p.reap(proc, l.oom) // ends with the process; Wait and Close wait for it
	return p, nil
}
