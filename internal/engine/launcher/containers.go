package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/reap"
)

// container is one container of the agent, running or ended.
type container struct {
	spec  engine.Spec
	proc  *cell.Process
	since time.Time
	exit  cell.Exit
	stdio bool // it has the caller's descriptors
	// answered is closed when the client that waits for the end has it; nil when
	// none does. Cleaning up comes after that.
	answered chan struct{}
	ended    <-chan struct{} // closed when exit is set and everything is cleaned up
}

func (c *container) running() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// view gives what the client sees, and the pidfd of a running one.
func (c *container) view() (Container, *os.File) {
	out := Container{Name: c.spec.Name, Role: c.spec.Role, Spec: c.spec, Report: c.proc.Report(), Start: c.proc.StartTime(), Since: c.since, State: StateRunning}
	if c.running() {
		return out, c.proc.PIDFD()
	}
	exit := c.exit
	out.State, out.Exit = StateExited, &exit
	return out, nil
}

// keep bounds how many ended containers are remembered.
const keep = 64

// containers are all containers of one agent.
type containers struct {
	cfg     Config
	groups  *cgroup.Tree
	orphans *reap.Orphans
	pool    *pool

	mu       sync.Mutex
	byName   map[string]*container
	order    []string // ended containers, oldest first
	watch    map[chan Event]bool
	starting map[string]context.CancelFunc // by name: what a shutdown interrupts
	closed   bool
	wg       sync.WaitGroup // one per starting or running container
}

// isName keeps names to what is safe in paths and cgroups.
func isName(n string) bool {
	if n == "" || len(n) > 63 || n[0] == '-' {
		return false
	}
	for i := range len(n) {
		if b := n[i]; (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '-' {
			return false
		}
	}
	return true
}

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
	opt := cell.Options{Cgroups: cs.groups, Shim: r.Shim}
	if r.Stdio {
		if len(files) < 3 {
			return nil, fmt.Errorf("launcher: stdio needs three descriptors, %d came", len(files))
		}
		opt.Stdin, opt.Stdout, opt.Stderr = files[0], files[1], files[2]
		files = files[3:]
	} else {
		ends, wait, err := cs.openOutput(r.Spec.Name)
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
		Options: opt, Account: cs.cfg.Account, Conf: cs.cfg.Place.PodmanConf(), Root: containerDir, Skeleton: skeletonDir,
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
func (cs *containers) openOutput(name string) (ends [2]*os.File, wait func() error, err error) {
	log, err := openLog(filepath.Join(cs.cfg.Place.Logs(), name+".log"), logSize)
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

// follow waits for the end of a container and cleans up after it.
func (cs *containers) follow(c *container, done func() error, ended chan struct{}) {
	defer cs.wg.Done()
	exit, err := c.proc.Wait()
	if c.answered != nil {
		<-c.answered
	}
	cs.orphans.Gone(c.proc.PID())
	// What had no PID namespace of its own (the bare account, decoys) may have
	// left processes behind.
	err = errors.Join(err, c.proc.Kill())
	cs.orphans.Sweep()
	err = errors.Join(err, done(), c.proc.Cleanup())
	cs.mu.Lock()
	defer cs.mu.Unlock()
	// Under the lock, since answers send the pidfd of what still runs.
	if err = errors.Join(err, c.proc.Close()); err != nil {
		fmt.Fprintf(os.Stderr, "bulkhead launcher: end of %s: %v\n", c.spec.Name, err)
	}
	c.exit, c.since = exit, time.Now()
	close(ended)
	cs.order = append(cs.order, c.spec.Name)
	for len(cs.order) > keep {
		cs.forget(cs.order[0])
	}
	cs.tell(EventExited, c)
}

// forget drops the record of an ended container. mu is held.
func (cs *containers) forget(name string) {
	if c := cs.byName[name]; c != nil && !c.running() {
		delete(cs.byName, name)
	}
	for i, n := range cs.order {
		if n == name {
			cs.order = append(cs.order[:i], cs.order[i+1:]...)
			return
		}
	}
}

// tell sends an event to every watcher. One that does not read loses its
// connection rather than holding up everybody. A run that its own client waits
// for is no news. mu is held.
func (cs *containers) tell(kind EventKind, c *container) {
	if c.answered != nil || len(cs.watch) == 0 {
		return
	}
	view, _ := c.view()
	e := Event{Kind: kind, Container: view}
	for w := range cs.watch {
		select {
		case w <- e:
		default:
			delete(cs.watch, w)
			close(w)
		}
	}
}

// subscribe gives events from now on, and first one per running container.
func (cs *containers) subscribe() (events chan Event, cancel func()) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	w := make(chan Event, 256)
	for _, c := range cs.byName {
		if c.running() {
			view, _ := c.view()
			w <- Event{Kind: EventStarted, Container: view}
		}
	}
	cs.watch[w] = true
	return w, func() {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if cs.watch[w] {
			delete(cs.watch, w)
			close(w)
		}
	}
}

func (cs *containers) get(name string) (*container, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.byName[name]
	if c == nil {
		return nil, fmt.Errorf("launcher: no container %q: it never ran here, or its end is long ago", name)
	}
	return c, nil
}

// stop ends a container: SIGTERM to its first process, then SIGKILL to its
// cgroup.
func (cs *containers) stop(c *container, grace time.Duration) (cell.Exit, error) {
	if grace > 0 && c.running() {
		if err := c.proc.Signal(unix.SIGTERM); err != nil {
			return cell.Exit{}, err
		}
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-c.ended:
		case <-t.C:
		}
	}
	if c.running() {
		if err := c.proc.Kill(); err != nil {
			return cell.Exit{}, err
		}
	}
	<-c.ended
	return c.exit, nil
}

// shutdown kills everything and refuses what comes later.
func (cs *containers) shutdown() error {
	cs.mu.Lock()
	cs.closed = true
	for _, interrupt := range cs.starting {
		interrupt()
	}
	cs.mu.Unlock()
	var errs []error
	for {
		running, starting := cs.alive()
		for _, c := range running {
			_, err := cs.stop(c, 0)
			errs = append(errs, err)
		}
		if !starting {
			break
		}
		time.Sleep(time.Millisecond) // what is started when it was interrupted comes up, and is killed
	}
	cs.wg.Wait()
	errs = append(errs, cs.pool.close())
	return errors.Join(errs...)
}

// settled waits until nothing is being started, or ctx ends.
func (cs *containers) settled(ctx context.Context) {
	for ctx.Err() == nil {
		if _, starting := cs.alive(); !starting {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// alive gives what runs, and says whether something is being started.
func (cs *containers) alive() (running []*container, starting bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.byName {
		if c.running() {
			running = append(running, c)
		}
	}
	return running, len(cs.starting) > 0
}

// listenAt makes a socket that only root can reach: its folder is root's, 0700.
func listenAt(path string) (*net.UnixListener, error) {
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("launcher: listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("launcher: %w", err), l.Close())
	}
	return l, nil
}

func removeSocket(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("launcher: remove %s: %w", path, err)
	}
	return nil
}
