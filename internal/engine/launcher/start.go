package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/thread"
)

// launcherLimits bound the launcher itself, which needs a few MB; its
// containers have groups of their own.
var launcherLimits = cgroup.Limits{MemoryBytes: 128 << 20, PIDs: 256}

// GroupPath is the launcher's cgroup below Bulkhead's root cgroup.
func (cfg *Config) GroupPath() string {
	return filepath.Join(cfg.Place.Team, cfg.Place.Name, "launcher")
}

// Means is what a starter has for all launchers.
type Means struct {
	Cgroups *cgroup.Tree // Config.CgroupRoot, opened
	Bare    *cell.Bare
}

// MeansFor makes what launchers with that Config.CgroupRoot are started with.
func MeansFor(cgroupRoot string) (of Means, err error) {
	if of.Cgroups, err = cgroup.Open(cgroupRoot); err != nil {
		return Means{}, err
	}
	of.Bare, err = cell.MakeBare()
	return of, err
}

// Start makes the account cell of one agent and returns once its launcher
// answers. The launcher outlives the caller. Its own messages go to
// layout.Agent.Logs()/launcher.log.
func Start(ctx context.Context, cfg Config, of Means) (*Client, error) {
	groups := of.Cgroups
	group, err := groups.Create(cfg.GroupPath(), launcherLimits)
	if err != nil {
		return nil, err
	}
	proc, err := fork(cfg, group, groups.Unified(), of.Bare)
	if err != nil {
		return nil, fmt.Errorf("launcher: start for %s/%s: %w", cfg.Place.Team, cfg.Place.Name, errors.Join(err, group.Remove()))
	}
	c, err := Connect(ctx, cfg.Place.LauncherSocket())
	if err == nil && c.pid != proc.Pid {
		err = errors.Join(fmt.Errorf("launcher: %s is served by process %d, not by %d that was started", cfg.Place.LauncherSocket(), c.pid, proc.Pid), c.Close())
	}
	if err != nil {
		_ = proc.Kill()
		_, _ = proc.Wait()
		return nil, err
	}
	// Reaps the launcher when it ends while this process still lives. It holds
	// nothing, and nobody can wait for it: the launcher outlives its starter.
	go func() { _, _ = proc.Wait() }()
	return c, nil
}

// fork starts the launcher in its namespaces and cgroup and waits for its
// first word.
func fork(cfg Config, group *cgroup.Group, unified bool, bare *cell.Bare) (*os.Process, error) {
	raw, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	config, err := cell.Sealed("launcher", raw)
	if err != nil {
		return nil, err
	}
	defer func() { _ = config.Close() }()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = statusR.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, statusW.Close())
	}
	defer func() { _ = null.Close() }()
	log, err := os.OpenFile(filepath.Join(cfg.Place.Logs(), "launcher.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Join(err, statusW.Close())
	}
	defer func() { _ = log.Close() }()
	sys := &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
	}
	if unified {
		dir, err := group.Open()
		if err != nil {
			return nil, errors.Join(err, statusW.Close())
		}
		defer func() { _ = dir.Close() }()
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd()) // #nosec G115 -- a descriptor
	}
	program := filepath.Join(cfg.Programs, "bulkhead-shim")
	// One processor is enough for what mostly waits, and spares every start the
	// waking of a second thread that finds nothing to do.
	attr := &os.ProcAttr{Dir: "/", Env: []string{"GOMAXPROCS=1", "GOGC=50"}, Files: []*os.File{null, log, log, config, statusW, bare.File()}, Sys: sys}
	var proc *os.Process
	thread.Run(func() { // it moves to another cgroup and mount namespace
		if !unified {
			if err = group.JoinThread(); err != nil {
				return
			}
		}
		if err = makeRoot(&cfg, bare); err != nil {
			return
		}
		// Where it was on the host, since the programs are a source.
		proc, err = os.StartProcess(program, []string{"bulkhead-shim", "launcher"}, attr)
	})
	_ = statusW.Close()
	if err != nil {
		return nil, err
	}
	if err := firstWord(statusR); err != nil {
		_ = proc.Kill()
		_, _ = proc.Wait()
		return nil, err
	}
	return proc, nil
}

// firstWord waits until the launcher listens, or says why it cannot.
func firstWord(r *os.File) error {
	if err := r.SetReadDeadline(time.Now().Add(startPatience)); err != nil {
		return fmt.Errorf("first word: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return fmt.Errorf("first word: %w", err)
	}
	var st status
	if err := json.Unmarshal(bytes.TrimSpace(raw), &st); err != nil {
		return fmt.Errorf("it ended without a word (see launcher.log): %w", err)
	}
	if st.Error != "" {
		return errors.New(st.Error)
	}
	return nil
}
