package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
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
	bare    *cell.Bare
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
