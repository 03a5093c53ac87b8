package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/lookpath"
	"bulkhead/internal/reap"
	"bulkhead/internal/trim"
	"bulkhead/internal/wire"
)

// server answers the launcher protocol.
type server struct {
	cfg      Config
	listener *net.UnixListener
	all      *containers
	orphans  *reap.Orphans
	down     chan struct{} // closed by a shutdown
	once     sync.Once
	wg       sync.WaitGroup // connections

	codeMu sync.Mutex
	code   *codeServer // nil: nobody's code is run
	// trim gives memory back: starting containers leaves garbage behind that
	// would stay for minutes, and there is a launcher for each agent.
	trim *time.Timer
}

func newServer(cfg Config, bare *cell.Bare) (*server, error) {
	groups, err := cgroup.Open(cfg.CgroupRoot)
	if err != nil {
		return nil, err
	}
	l, err := listenAt(cfg.Place.LauncherSocket())
	if err != nil {
		return nil, err
	}
	orphans := &reap.Orphans{}
	return &server{
		cfg: cfg, listener: l, orphans: orphans, down: make(chan struct{}), trim: time.AfterFunc(trim.AfterStart, rest),
		all: &containers{cfg: cfg, groups: groups, bare: bare, orphans: orphans, pool: newPool(&cfg, groups, bare, orphans), byName: map[string]*container{}, watch: map[chan Event]bool{}, starting: map[string]context.CancelFunc{}},
	}, nil
}

// garbage is how much garbage may gather, in percent of what is in use: while the
// agent starts, and from then on.
const startGarbage, garbage = 400, 100

// rest is what a launcher does when nothing has been started for a while.
func rest() {
	debug.SetGCPercent(garbage)
	trim.Memory()
}

// serve answers until a shutdown. The end of the process ends every process of
// the account cell.
func (s *server) serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.wg.Go(func() { s.orphans.Run(ctx) })
	defer s.trim.Stop()
	s.wg.Go(func() {
		<-s.down
		_ = s.listener.Close()
		cancel()
	})
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			// Descriptors have run out, most likely; callers try again.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		s.wg.Go(func() { s.connection(ctx, c) })
	}
	s.wg.Wait()
	return removeSocket(s.cfg.Place.LauncherSocket())
}

// connection answers one request.
func (s *server) connection(ctx context.Context, c *net.UnixConn) {
	conn := wire.New(c)
	defer func() { _ = conn.Close() }()
	// The folder is root's alone; this holds when somebody gets past that.
	if cred, err := peer(c); err != nil || cred.Uid != 0 {
		return
	}
	if _, err := conn.Greet(Protocol, Version); err != nil {
		return
	}
	// A client may keep its connection for a later request.
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })
	defer stop()
	m, files, err := conn.Recv()
	if err != nil {
		return
	}
	defer closeAll(files)
	if err := s.answer(ctx, conn, m, files); err != nil {
		f := wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}
		var command *cell.CommandError
		if errors.As(err, &command) {
			f.Exit, f.Mend = lookpath.ExitStatus(command), "name a program that is in the container's image"
		}
		_ = conn.Send(m.ID, wire.VerbError, f)
	}
}

func (s *server) answer(ctx context.Context, conn *wire.Conn, m wire.Message, files []*os.File) error {
	switch m.Verb {
	case verbLaunch:
		s.trim.Reset(trim.AfterStart)
		var r LaunchRequest
		if err := json.Unmarshal(m.Body, &r); err != nil {
			return fmt.Errorf("launcher: launch: %w", err)
		}
		return s.launch(ctx, conn, m.ID, r, files)
	case verbList:
		return s.list(ctx, conn, m.ID)
	case verbWatch:
		return s.watch(ctx, conn)
	case verbCode:
		return s.serveCode(conn, m, files)
	case verbRest:
		s.all.pool.rest()
		return conn.Send(m.ID, verbOK, struct{}{})
	case verbShutdown:
		s.replaceCode(nil)
		err := s.all.shutdown()
		if err == nil {
			err = conn.Send(m.ID, verbOK, struct{}{})
		}
		s.once.Do(func() { close(s.down) })
		return err
	case verbWait, verbStop, verbKill:
		return s.named(ctx, conn, m)
	}
	return fmt.Errorf("launcher: verb %q is not one", m.Verb)
}

// launch starts a container, and waits for it when the client asked for that.
func (s *server) launch(ctx context.Context, conn *wire.Conn, id uint64, r LaunchRequest, files []*os.File) error {
	if !poolable(&r, len(files)-3) {
		// Who asked may go before a slow start is over: then nobody knows of
		// what is being started, and the next warden starts it anew.
		asked, left := context.WithCancel(ctx)
		defer left()
		ctx = asked
		s.wg.Go(func() {
			defer left()
			_, more, _ := conn.Recv() // nothing more comes; this notices the end
			closeAll(more)
		})
	}
	c, err := s.all.launch(ctx, r, files)
	// The container has its copies. Whoever reads its output sees the end of
	// that when the last of them closes, not when this connection does.
	closeAll(files)
	if err != nil {
		return err
	}
	over := c.proc.Done()
	if c.answered != nil {
		defer close(c.answered)
		over = c.answered
	}
	if poolable(&r, len(files)-3) {
		s.all.pool.refill(r.Spec, over)
	}
	if err := s.launched(conn, id, c, r.Wait); err != nil || !r.Wait {
		return err
	}
	return s.exited(ctx, conn, id, c)
}

func send(conn *wire.Conn, id uint64, verb string, view Container, fd *os.File) error {
	if fd == nil {
		return conn.Send(id, verb, view)
	}
	return conn.Send(id, verb, view, fd)
}

// launched answers a launch, in short or with everything.
func (s *server) launched(conn *wire.Conn, id uint64, c *container, short bool) error {
	// The end of a container closes its pidfd; sending and closing must not meet.
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	view, fd := c.view()
	if short {
		view = Container{Name: view.Name, State: view.State, Since: view.Since}
	}
	return send(conn, id, verbOK, view, fd)
}

// list waits for what is being started, so that nobody starts it twice.
func (s *server) list(ctx context.Context, conn *wire.Conn, id uint64) error {
	s.all.settled(ctx)
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	for _, c := range s.all.byName {
		view, fd := c.view()
		if err := send(conn, id, verbContainer, view, fd); err != nil {
			return err
		}
	}
	return conn.Send(id, verbOK, struct{}{})
}

// watch streams events until the client closes or the launcher ends.
func (s *server) watch(ctx context.Context, conn *wire.Conn) error {
	events, cancel := s.all.subscribe()
	defer cancel()
	gone := make(chan struct{})
	s.wg.Go(func() {
		defer close(gone)
		_, files, _ := conn.Recv() // nothing more comes; this notices the end
		closeAll(files)
	})
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return errors.New("launcher: the watcher was too slow: connect again")
			}
			if err := conn.Send(0, verbEvent, e); err != nil {
				return err
			}
		case <-gone:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *server) named(ctx context.Context, conn *wire.Conn, m wire.Message) error {
	var n named
	if err := json.Unmarshal(m.Body, &n); err != nil {
		return fmt.Errorf("launcher: %s: %w", m.Verb, err)
	}
	c, err := s.all.get(n.Name)
	if err != nil {
		return err
	}
	switch m.Verb {
	case verbWait:
		return s.exited(ctx, conn, m.ID, c)
	case verbStop:
		if _, err := s.all.stop(c, time.Duration(n.GraceMillis)*time.Millisecond); err != nil {
			return err
		}
	default:
		if _, err := s.all.stop(c, 0); err != nil {
			return err
		}
	}
	return conn.Send(m.ID, verbOK, c.exit)
}

// exited answers how a container ended, when it has.
func (s *server) exited(ctx context.Context, conn *wire.Conn, id uint64, c *container) error {
	// Somebody who holds the output's ends needs no cleaning up to be over.
	over := c.ended
	if c.stdio {
		over = c.proc.Done()
	}
	select {
	case <-over:
	case <-ctx.Done():
		return errors.New("launcher: shutting down")
	}
	exit, err := c.proc.Wait()
	if err != nil {
		return err
	}
	return conn.Send(id, verbOK, exit)
}

// peer reads who is at the other end.
func peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("launcher: peer: %w", err)
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) // #nosec G115 -- a descriptor
	})
	if err = errors.Join(err, cerr); err != nil {
		return nil, fmt.Errorf("launcher: peer: %w", err)
	}
	return cred, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
