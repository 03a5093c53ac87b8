package cell

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/lookpath"
	"bulkhead/internal/thread"
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
	// wait lets the child wait for its command, once all is in force.
	wait bool

	script   *script  // nil until the thread is settled
	status   *os.File // our end
	statusFD int      // its number: File.Fd would make it block
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
	if l.script != nil {
		l.script.close()
	}
}

// prepare makes what needs no child: cgroup and mounts.
func (l *launch) prepare() (err error) {
	if l.opt.Cgroups != nil {
		lim := l.spec.Limits.WithDefaults()
		bounds := cgroup.Limits{MemoryBytes: lim.MemoryBytes, MilliCPU: lim.MilliCPU, PIDs: lim.PIDs}
		if !l.spec.Has(engine.MechLimits) {
			bounds = cgroup.Limits{}
		}
		l.group, err = l.opt.Cgroups.Create(l.spec.Cgroup, bounds)
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
	var p *Process
	var err error
	thread.Run(func() {
		if err = l.settle(); err == nil {
			p, err = l.fork()
		}
	})
	return p, err
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
	if l.tree == nil {
		return nil
	}
	err := l.tree.enter(l.opt.Bare) // last: no path of the host is in sight after it
	l.tree.close()                  // its mounts are in place
	return err
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
	if l.spec.Role == engine.RoleAccount {
		return l.forkAccount(files)
	}
	return l.forkScript(files)
}

// forkAccount starts a process of the bare account: its ids, in the starter's
// namespaces, and nothing else.
func (l *launch) forkAccount(files []*os.File) (*Process, error) {
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd, Credential: &syscall.Credential{Uid: l.spec.User.ID, Gid: l.spec.User.ID}}
	if l.groupDir != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(l.groupDir.Fd()) // #nosec G115 -- a descriptor
	}
	path, err := lookpath.Find(l.spec.Command[0], l.spec.Env)
	if err != nil {
		return nil, err
	}
	proc, err := os.StartProcess(path, l.spec.Command, &os.ProcAttr{Dir: l.spec.Dir, Env: nonNil(l.spec.Env), Files: files, Sys: sys})
	if err != nil {
		return nil, err
	}
	return l.watch(proc, pidfd, Report{})
}

// nonNil keeps os.StartProcess from handing down our own environment.
func nonNil(env []string) []string {
	if env == nil {
		return []string{}
	}
	return env
}

// namespaces are the clone flags.
func (l *launch) namespaces() uintptr {
	s := l.spec
	flags := uintptr(unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if s.Has(engine.MechMountNS) {
		flags |= unix.CLONE_NEWNS
	}
	if s.Has(engine.MechPIDNS) {
		flags |= unix.CLONE_NEWPID
	}
	if l.mapped() {
		flags |= unix.CLONE_NEWUSER
	}
	return flags
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
	// Its end need not wait, nor share the processors with, the kernel's taking
	// these apart. When it has ended already there is nothing to hold.
	for _, ns := range []string{"mnt", "net", "ipc"} {
		if f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", proc.Pid, ns)); err == nil {
			p.held = append(p.held, f)
		}
	}
	go p.reap(proc, l.oom) // ends with the process; Wait and Close wait for it
	return p, nil
}
