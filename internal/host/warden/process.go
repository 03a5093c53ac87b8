package warden

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine/cell"
)

// process is a dialer or the resolver: started by this warden or adopted from
// a former one.
type process struct {
	identity cell.Identity
	pidfd    *os.File
	own      *cell.Process // nil when adopted
}

func started(p *cell.Process) *process {
	id, err := cell.Identify("/proc", p.PID())
	if err != nil { // it has ended already; alive says so
		id = cell.Identity{PID: p.PID(), Start: p.StartTime()}
	}
	return &process{identity: id, pidfd: p.PIDFD(), own: p}
}

// adopt finds the process that a former warden wrote down at path, or nil when
// it does not run any more. The file is root's, but a process id may have been
// used again: start time, user id and cgroup must all be the same.
func (w *Warden) adopt(path string, uid uint32, cgroup string) *process {
	var id cell.Identity
	if ok, err := readJSON(path, &id); err != nil || !ok || id.PID <= 1 {
		return nil
	}
	group, err := w.cgroups.Group(cgroup)
	if err != nil {
		return nil
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "pidfd") // #nosec G115 -- a descriptor
	// Compared after the descriptor is held: from here on the number cannot
	// change its meaning.
	id.UID, id.Cgroup = uid, group.Full()
	if err := cell.Same("/proc", id); err != nil {
		_ = f.Close()
		return nil
	}
	return &process{identity: id, pidfd: f}
}

// alive asks the kernel.
func (p *process) alive() bool {
	if p.own != nil {
		select {
		case <-p.own.Done():
			return false
		default:
			return true
		}
	}
	fds := []unix.PollFd{{Fd: int32(p.pidfd.Fd()), Events: unix.POLLIN}} // #nosec G115 -- a descriptor
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0
}

// wait returns when the process has ended or ctx has.
func (p *process) wait(ctx context.Context) {
	if p.own != nil {
		select {
		case <-p.own.Done():
		case <-ctx.Done():
		}
		return
	}
	// An adopted process is nobody's child here; its pidfd becomes readable
	// when it ends.
	for p.alive() && ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(p.pidfd.Fd()), Events: unix.POLLIN}} // #nosec G115 -- a descriptor
		_, _ = unix.Poll(fds, 500)
	}
}

// kill ends the process and waits for its end, five seconds at most.
func (p *process) kill() {
	_ = unix.PidfdSendSignal(int(p.pidfd.Fd()), unix.SIGKILL, nil, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.wait(ctx)
	if p.own != nil {
		_ = p.own.Close()
		return
	}
	_ = p.pidfd.Close()
}
