package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/podman"
)

// launch starts a container. files belong to the caller. A start that takes
// long ends with ctx.
func (cs *containers) launch(ctx context.Context, r LaunchRequest, files []*os.File) (*container, error) {
	s := r.Spec
	if !isName(s.Name) {
		return nil, fmt.Errorf("launcher: %q is no name of a container", s.Name)
	}
	if s.Team != cs.cfg.Place.Team || s.Agent != cs.cfg.Place.Name {
		return nil, fmt.Errorf("launcher: this is the launcher of %s/%s, the container belongs to %s/%s", cs.cfg.Place.Team, cs.cfg.Place.Name, s.Team, s.Agent)
	}
	if s.Network.Host {
		return nil, errors.New("launcher: the host's network namespace is not here: dialer and resolver are started by the warden itself")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := cs.reserve(s.Name, cancel); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	c := &container{spec: s, stdio: r.Stdio, ended: ended}
	if r.Wait && r.Stdio {
		c.answered = make(chan struct{})
	}
	// Not under the lock: Podman takes its time, and others must get answers.
	done, err := cs.start(ctx, c, r, files)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.starting, s.Name)
	if err != nil {
		cs.wg.Done()
		return nil, err
	}
	cs.forget(s.Name)
	cs.byName[s.Name] = c
	go cs.follow(c, done, ended)
	cs.tell(EventStarted, c)
	return c, nil
}

// reserve takes a name for a start, and one of wg.
func (cs *containers) reserve(name string, cancel context.CancelFunc) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return errors.New("launcher: shutting down")
	}
	if old := cs.byName[name]; old != nil && old.running() || cs.starting[name] != nil {
		return fmt.Errorf("launcher: container %s runs already: stop it first", name)
	}
	cs.starting[name] = cancel
	cs.wg.Add(1)
	return nil
}

// start makes the log, the control socket and the process. done ends what was
// made beside the process, and is called after its end.
func (cs *containers) start(ctx context.Context, c *container, r LaunchRequest, files []*os.File) (done func() error, err error) {
	var undo []func() error
	finish := func() error {
		var errs []error
		for i := len(undo) - 1; i >= 0; i-- {
			errs = append(errs, undo[i]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			_ = finish()
		}
	}()
	opt := cell.Options{Cgroups: cs.groups, Bare: cs.bare, Shim: r.Shim}
	if r.Stdio {
		if len(files) < 3 {
			return nil, fmt.Errorf("launcher: stdio needs three descriptors, %d came", len(files))
		}
		opt.Stdin, opt.Stdout, opt.Stderr = files[0], files[1], files[2]
		files = files[3:]
	} else {
		ends, wait, err := cs.openOutput(r.Spec.Name, r.LogBytes)
		if err != nil {
			return nil, err
		}
		opt.Stdout, opt.Stderr = ends[0], ends[1]
		defer func() { _, _ = ends[0].Close(), ends[1].Close() }()
		undo = append(undo, wait)
	}
	opt.Files = files
	if len(r.Spec.Init) > 0 {
		if opt.Control, err = listenAt(cs.cfg.Place.ShimSocket(r.Spec.Name)); err != nil {
			return nil, err
		}
		// The shim holds the socket from now on; our copy would keep callers
		// waiting in the queue of a dead one.
		defer func() { _ = opt.Control.Close() }()
		undo = append(undo, func() error { return removeSocket(cs.cfg.Place.ShimSocket(r.Spec.Name)) })
	}
	if r.Spec.Engine == engine.Podman {
		p, err := podman.Start(ctx, r.Spec, cs.podmanOptions(opt))
		if err != nil {
			return nil, err
		}
		c.proc, c.since = p, time.Now()
		return finish, nil
	}
	if made, err := cs.fromPool(c, r, opt); made || err != nil {
		return finish, err
	}
	err = cs.orphans.Spawn(func() (int, error) {
		p, err := cell.Start(r.Spec, opt)
		if err != nil {
			return 0, err
		}
		c.proc, c.since = p, time.Now()
		return p.PID(), nil
	})
	if err != nil {
		return nil, err
	}
	return finish, nil
}

// podmanOptions adds what Podman needs of the account cell.
func (cs *containers) podmanOptions(opt cell.Options) podman.Options {
	return podman.Options{
		Options: opt, Account: cs.cfg.Account, Conf: cs.cfg.Place.PodmanConf(), Program: filepath.Join(cs.cfg.Programs, "bulkhead-shim"), Root: containerDir, Skeleton: skeletonDir,
		Groups: groupsDir, ShownGroups: shownGroupsDir, Orphans: cs.orphans,
	}
}

// fromPool starts the container from one that was prepared, if there is one.
func (cs *containers) fromPool(c *container, r LaunchRequest, opt cell.Options) (bool, error) {
	if !poolable(&r, len(opt.Files)) {
		return false, nil
	}
	ready := cs.pool.take(&r.Spec, r.Fresh)
	if ready == nil {
		return false, nil
	}
	command := cell.Command{Argv: r.Spec.Command, Env: r.Spec.Env, Dir: r.Spec.Dir, Stdin: opt.Stdin, Stdout: opt.Stdout, Stderr: opt.Stderr}
	p, err := ready.start(cs.orphans, command)
	if err != nil {
		return true, err
	}
	c.proc, c.since = p, time.Now()
	c.spec.Cgroup = ready.group
	return true, nil
}

// drainTime is how long what a container printed last may take into its log.
const drainTime = time.Second

// openOutput makes the pipes whose write ends the container gets, and copies
// what comes out to its log until they close.
func (cs *containers) openOutput(name string, most int64) (ends [2]*os.File, wait func() error, err error) {
	log, err := openLog(filepath.Join(cs.cfg.Place.Logs(), name+".log"), most)
	if err != nil {
		return ends, nil, err
	}
	var wg sync.WaitGroup
	var errs [2]error
	var reads [2]*os.File
	for i, stream := range []string{"stdout", "stderr"} {
		r, w, err := os.Pipe()
		if err != nil {
			return ends, nil, fmt.Errorf("launcher: pipe: %w", err)
		}
		ends[i], reads[i] = w, r
		wg.Go(func() { errs[i] = log.copy(stream, r) })
	}
	return ends, func() error {
		// Every process of the container is dead, so the pipes are at their end,
		// unless somebody else holds one: an agent can pass its output's
		// descriptors on, to its gateway for example, whose end is not waited for.
		for _, r := range reads {
			_ = r.SetReadDeadline(time.Now().Add(drainTime))
		}
		wg.Wait()
		return errors.Join(errs[0], errs[1], reads[0].Close(), reads[1].Close(), log.Close())
	}, nil
}
