package podman

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/cell/stage2"
	"bulkhead/internal/thread"
)

// patience bounds a start: a Podman that hangs is killed with everything that
// it started.
const patience = 30 * time.Second

// startLimits are in force while Podman works in the container's cgroup: it
// needs more than a small agent gets. Afterwards the Spec's are set, before
// stage 2 gets its order.
var startLimits = cgroup.Limits{MemoryBytes: 512 << 20, MilliCPU: 4000, PIDs: 256}

// start is one start in progress.
type start struct {
	spec    *engine.Spec
	opt     *Options
	runtime string
	group   *cgroup.Group
	tree    *cell.Tree
	netns   string
	userns  string        // Podman's own, above the container's
	conn    *net.UnixConn // to stage 2
	made    []*os.File    // closed at the end
	said    *os.File      // what Podman wrote
	oom     int64
}

// Start starts one container and returns when its command runs, with
// everything in force. The caller is PID 1 of a PID namespace and root in the
// initial user namespace.
func Start(ctx context.Context, spec engine.Spec, opt Options) (*cell.Process, error) {
	if err := Check(&spec, &opt); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := &start{spec: &spec, opt: &opt}
	defer s.close()
	var p *cell.Process
	var err error
	if s.runtime, err = ociRuntime(spec.OCIRuntime, opt.Cgroups.Unified()); err == nil {
		p, err = s.run(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("podman: start %s/%s/%s: %w", spec.Team, spec.Agent, spec.Name, err)
	}
	return p, nil
}

func (s *start) close() {
	for _, f := range s.made {
		_ = f.Close()
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.tree != nil {
		s.tree.Close()
	}
}

func (s *start) own(f *os.File) *os.File {
	s.made = append(s.made, f)
	return f
}

// clear ends everything of a start that failed.
func (s *start) clear() error {
	err := s.group.Kill(5 * time.Second)
	s.opt.Orphans.Sweep()
	return errors.Join(err, s.group.Remove())
}

func (s *start) run(ctx context.Context) (_ *cell.Process, err error) {
	if s.group, err = s.opt.Cgroups.Create(s.spec.Cgroup, startLimits); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.clear())
		}
	}()
	if s.oom, err = s.group.OOMKills(); err != nil {
		return nil, err
	}
	if s.tree, err = cell.NewTree(s.spec, s.opt.Skeleton, Points()); err != nil {
		return nil, err
	}
	podman, err := s.fork()
	if err != nil {
		return nil, err
	}
	s.userns, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/user", podman.Pid)) // none when it has ended already, which is told below
	stop := context.AfterFunc(ctx, func() {                                // unblocks everything below
		_ = podman.Kill()
		_ = s.conn.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	pid, report, err := s.firstWord()
	end, werr := podman.Wait()
	s.opt.Orphans.Gone(podman.Pid)
	if err == nil {
		err = werr
	}
	if err == nil && !end.Success() {
		err = fmt.Errorf("podman ended with %s", end)
	}
	if ctx.Err() != nil {
		err = errors.Join(fmt.Errorf("not done after %s", patience), ctx.Err(), err)
	}
	if err != nil {
		if words := s.words(); words != "" {
			err = fmt.Errorf("%w: %s", err, words)
		}
		return nil, err
	}
	return s.take(pid, report)
}

// fork starts Podman from a thread that has settled in the container's places.
func (s *start) fork() (proc *os.Process, err error) {
	plan, err := s.plan()
	if err != nil {
		return nil, err
	}
	status, err := s.socket()
	if err != nil {
		return nil, err
	}
	defer func() { _ = status.Close() }()
	if s.said, err = memory("podman"); err != nil {
		return nil, err
	}
	s.own(s.said)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	s.own(null)
	path, err := find("podman")
	if err != nil {
		return nil, err
	}
	sys := &syscall.SysProcAttr{
		Setsid: true, Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWIPC,
		UidMappings: outer(s.spec), GidMappings: outer(s.spec),
		GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{},
	}
	if s.opt.Cgroups.Unified() {
		dir, err := s.group.Open()
		if err != nil {
			return nil, err
		}
		s.own(dir)
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd()) // #nosec G115 -- a descriptor
	}
	attr := &os.ProcAttr{
		Dir: "/", Env: environment(runs(s.spec), s.opt.Conf), Files: []*os.File{null, null, s.said, plan, status}, Sys: sys,
	}
	argv := arguments(s.spec, s.runtime, s.opt.Root, s.opt.Conf, s.opt.Program)
	thread.Run(func() {
		if err = s.settle(); err != nil {
			return
		}
		if err = cell.OwnNamespaces(s.spec); err != nil {
			return
		}
		err = s.opt.Orphans.Spawn(func() (int, error) {
			if proc, err = os.StartProcess(path, argv, attr); err != nil {
				return 0, err
			}
			return proc.Pid, nil
		})
	})
	runtime.KeepAlive(s.made)
	return proc, err
}

// plan is stage 2's: confine, then wait for the order.
func (s *start) plan() (*os.File, error) {
	raw, err := json.Marshal(stage2.Plan{Profile: confine.For(s.inside())})
	if err != nil {
		return nil, err
	}
	f, err := cell.Sealed("plan", raw)
	if err != nil {
		return nil, err
	}
	return s.own(f), nil
}

// socket makes the way to stage 2. Every message on it carries who sent it, as
// the kernel sees that.
func (s *start) socket() (theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "status")  // #nosec G115 -- a descriptor
	theirs = os.NewFile(uintptr(fds[1]), "status") // #nosec G115 -- a descriptor
	err = unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	var c net.Conn
	if err == nil {
		c, err = net.FileConn(mine)
	}
	_ = mine.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("status socket: %w", err), theirs.Close())
	}
	s.conn = c.(*net.UnixConn)
	return theirs, nil
}

// settle makes the calling thread one whose children find the container's
// network, cgroup and tree, and nothing that the account could have written.
func (s *start) settle() (err error) {
	if s.netns, err = cell.NewNetwork(s.spec.Network); err != nil {
		return err
	}
	if !s.opt.Cgroups.Unified() {
		if err := s.group.JoinThread(); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cut mount propagation: %w", err)
	}
	if err := s.hideGroups(); err != nil {
		return err
	}
	id := runs(s.spec)
	for dir, size := range map[string]string{scratchDir: "32m", shmDir: "1m"} {
		err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size="+size+",mode=0700,uid="+id+",gid="+id)
		if err != nil {
			return fmt.Errorf("fresh %s for Podman: %w", dir, err)
		}
	}
	return s.tree.Place(s.opt.Root)
}

// hideGroups takes the control groups out of sight. runc ends when it finds no
// cgroup mount at all, so it gets to see them, where nothing but root can
// write.
func (s *start) hideGroups() error {
	if s.runtime == "runc" {
		if err := unix.Mount(s.opt.Groups, s.opt.ShownGroups, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("show runc the cgroups: %w", err)
		}
		return nil
	}
	if err := unix.Unmount(s.opt.Groups, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hide the cgroups: %w", err)
	}
	return nil
}

func memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil // #nosec G115 -- a descriptor
}

// words is the end of what Podman and its helpers wrote.
func (s *start) words() string {
	const most = 2048
	end, err := s.said.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	buf := make([]byte, min(end, most))
	n, err := s.said.ReadAt(buf, end-int64(len(buf)))
	if err != nil && !errors.Is(err, io.EOF) {
		return err.Error()
	}
	return string(bytes.TrimSpace(buf[:n]))
}
