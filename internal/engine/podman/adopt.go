package podman

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/cell/stage2"
)

// firstWord waits until stage 2 has confined itself, and learns from the
// kernel which process it is.
func (s *start) firstWord() (int, confine.Result, error) {
	line, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, _, err := s.conn.ReadMsgUnix(line, oob)
	if errors.Is(err, io.EOF) {
		return 0, confine.Result{}, errors.New("no container came")
	}
	if err != nil {
		return 0, confine.Result{}, fmt.Errorf("wait for stage 2: %w", err)
	}
	var r stage2.Report
	if err := json.Unmarshal(bytes.TrimSpace(line[:n]), &r); err != nil {
		return 0, confine.Result{}, fmt.Errorf("stage 2's first word: %w", err)
	}
	if r.Error != "" {
		return 0, confine.Result{}, errors.New(r.Error)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, confine.Result{}, fmt.Errorf("stage 2's first word: %w", err)
	}
	for i := range msgs {
		if cred, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
			return int(cred.Pid), r.Result, nil
		}
	}
	return 0, confine.Result{}, errors.New("the kernel did not say whose word came")
}

// take makes the waiting process ours and lets it go on.
func (s *start) take(pid int, report confine.Result) (*cell.Process, error) {
	// From here on it must not be mistaken for an orphan: with conmon's end it
	// becomes our child.
	if err := s.opt.Orphans.Spawn(func() (int, error) { return pid, nil }); err != nil {
		return nil, err
	}
	p, err := s.adopt(pid, report)
	if err != nil {
		s.opt.Orphans.Gone(pid)
		return nil, err
	}
	if err := s.order(p); err != nil {
		err = errors.Join(err, p.Kill())
		_, werr := p.Wait()
		s.opt.Orphans.Gone(pid)
		return nil, errors.Join(err, werr, p.Close())
	}
	return p, nil
}

func (s *start) adopt(pid int, report confine.Result) (*cell.Process, error) {
	if err := s.leaveOnly(pid); err != nil {
		return nil, err
	}
	check := s.readBack
	if Relayed(s.spec) {
		check = s.readBackSandbox
	}
	if err := check(pid); err != nil {
		return nil, err
	}
	l := s.spec.Limits.WithDefaults()
	if _, err := s.opt.Cgroups.Create(s.spec.Cgroup, cgroup.Limits{MemoryBytes: l.MemoryBytes, MilliCPU: l.MilliCPU, PIDs: l.PIDs}); err != nil {
		return nil, err
	}
	return cell.Adopt(pid, s.group, report, s.oom)
}

// leaveOnly kills what Podman left in the cgroup beside the container, and
// waits until the container's parent is this process.
func (s *start) leaveOnly(pid int) error {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		procs, err := s.group.Procs()
		if err != nil {
			return err
		}
		found, kept := false, 0
		for _, p := range procs {
			if p == pid {
				found = true
				continue
			}
			if s.belongs(p) {
				kept++
				continue
			}
			if err := unix.Kill(p, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end %d, which Podman left: %w", p, err)
			}
		}
		if !found {
			return fmt.Errorf("process %d is not in cgroup %s, where %v are", pid, s.group.Path(), procs)
		}
		if len(procs) == 1+kept {
			parent, err := parentOf(pid)
			if err != nil {
				return err
			}
			if parent == os.Getpid() {
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("the processes %v of Podman outlived SIGKILL", procs)
		}
		s.opt.Orphans.Sweep()
	}
}

// belongs says whether a process is one of a sandbox's own: its file server and
// those in which the guest's code runs. All of them live in user namespaces
// below the one in which Podman and conmon do.
func (s *start) belongs(pid int) bool {
	if !Relayed(s.spec) || s.userns == "" {
		return false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil { // it has ended
		return false
	}
	ours, err := os.Readlink("/proc/self/ns/user")
	return err == nil && theirs != ours && theirs != s.userns
}

// order tells stage 2 what to run, and returns once it runs.
func (s *start) order(p *cell.Process) error {
	opt := s.opt.Options
	if Relayed(s.spec) {
		shim := *opt.Shim
		shim.Relayed, opt.Shim = true, &shim
	}
	files, made, err := cell.ContainerFiles(s.inside(), &opt)
	if err != nil {
		return err
	}
	s.made = append(s.made, made...)
	if Relayed(s.spec) && opt.Control != nil {
		if files[engine.ShimControl], err = s.carry(opt.Control, p); err != nil {
			return err
		}
	}
	_, err = cell.Order(s.conn, stage2.Order{Argv: s.spec.Init, Env: s.spec.Env, Dir: "/"}, files)
	if err != nil {
		return fmt.Errorf("process %d: %w", p.PID(), err)
	}
	return nil
}

// inside is what the container's own kernel is asked to keep.
func (s *start) inside() *engine.Spec {
	if Relayed(s.spec) {
		return guest(s.spec)
	}
	return s.spec
}

// carry gives the shim a way to its control connections, for as long as the
// container lives.
func (s *start) carry(control *net.UnixListener, p *cell.Process) (*os.File, error) {
	c, theirs, err := newCarrier(control)
	if err != nil {
		return nil, err
	}
	go func() { // ends with the container, which is reaped by whoever holds p
		<-p.Done()
		c.close()
	}()
	go c.run() // ends with close
	return s.own(theirs), nil
}
