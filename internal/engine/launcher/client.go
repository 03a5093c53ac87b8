package launcher

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/wire"
)

// Container is what the launcher knows of one container. The record of one
// that ended stays until the name is used again, or until 64 more have ended.
type Container struct {
	Name    string      `json:"name"`
	Role    engine.Role `json:"role"`
	State   State       `json:"state"`
	Since   time.Time   `json:"since"` // when State began
	Spec    engine.Spec `json:"spec"`
	Report  cell.Report `json:"report"`
	Start   uint64      `json:"start"` // start time, field 22 of /proc/PID/stat
	Exit    *cell.Exit  `json:"exit,omitempty"`
	HostPID int         `json:"-"` // in the client's own PID namespace, from the pidfd; 0 when exited, and from Run: see HostPIDOf
	PIDFD   *os.File    `json:"-"` // of the first process; nil when exited. The caller closes it.
}

// ErrGone means that the launcher does not answer any more: it ended, and its
// PID namespace took every process of the agent along.
var ErrGone = errors.New("launcher: gone")

// Client speaks to one launcher. It is safe for concurrent use; each call uses
// a connection of its own.
type Client struct {
	socket string
	pid    int
	pidfd  *os.File
	exited chan struct{} // closed when the launcher has ended (and was reaped, when this process started it)
	over   chan struct{} // closed when the goroutine that watches the end is over
	spares spares        // for Run
}

// Connect finds a running launcher. It checks that the peer is root and takes
// a pidfd of it. An error that is [ErrGone] means that nobody listens.
func Connect(ctx context.Context, socket string) (*Client, error) {
	c := &Client{socket: socket, exited: make(chan struct{}), over: make(chan struct{})}
	c.spares.dial = c.dial
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	cred, err := peer(conn.Unix())
	if err != nil {
		return nil, err
	}
	c.pid = int(cred.Pid)
	fd, err := unix.PidfdOpen(c.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("launcher: pidfd of %d: %w", c.pid, err)
	}
	c.pidfd = os.NewFile(uintptr(fd), "pidfd") // #nosec G115 -- a descriptor
	end, err := c.pidfd.SyscallConn()
	if err == nil {
		err = c.pidfd.SetReadDeadline(time.Time{}) // the poller has it, so Close can end the wait
	}
	if err != nil {
		_ = c.pidfd.Close()
		return nil, fmt.Errorf("launcher: pidfd of %d: %w", c.pid, err)
	}
	go c.watchEnd(end) // ends with the launcher or with Close, which waits for it
	return c, nil
}

// Failure is why the launcher did not do what was asked.
type Failure struct{ wire.Failure }

func (f *Failure) Error() string { return f.Message }

// watchEnd closes exited when the launcher ends: a pidfd becomes readable at
// the end of its process.
func (c *Client) watchEnd(end syscall.RawConn) {
	defer close(c.over)
	err := end.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // #nosec G115 -- a descriptor
		return err == nil && n > 0
	})
	if err == nil {
		close(c.exited)
	}
}

// PID is the launcher's process id as this process sees it: PID 1 of the
// account cell.
func (c *Client) PID() int { return c.pid }

// PIDFD refers to the launcher. The client closes it.
func (c *Client) PIDFD() *os.File { return c.pidfd }

// Exited is closed when the launcher has ended.
func (c *Client) Exited() <-chan struct{} { return c.exited }

// Close lets go of the launcher, which goes on.
func (c *Client) Close() error {
	err := c.pidfd.SetReadDeadline(time.Unix(1, 0))
	if err == nil {
		<-c.over
	}
	c.spares.close()
	if err := errors.Join(err, c.pidfd.Close()); err != nil {
		return fmt.Errorf("launcher: %w", err)
	}
	return nil
}

// dial opens a connection and checks that root is at its other end.
func (c *Client) dial(ctx context.Context) (*wire.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s: %w", ErrGone, c.socket, err)
		}
		return nil, fmt.Errorf("launcher: %w", err)
	}
	u, ok := raw.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("launcher: %s is no unix socket", c.socket), raw.Close())
	}
	conn := wire.New(u)
	cred, err := peer(u)
	if err == nil && cred.Uid != 0 {
		err = fmt.Errorf("launcher: %s is served by user %d, not by root: somebody else made that socket", c.socket, cred.Uid)
	}
	if err == nil {
		_, err = conn.Greet(Protocol, Version)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// call sends a request and gives the first answer.
func (c *Client) call(ctx context.Context, verb string, body any, files []*os.File, f func(wire.Message, []*os.File) (more bool, err error)) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	return c.ask(ctx, conn, verb, body, files, f)
}

// ask is call over a connection that is greeted; it closes conn.
func (c *Client) ask(ctx context.Context, conn *wire.Conn, verb string, body any, files []*os.File, f func(wire.Message, []*os.File) (more bool, err error)) error {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Unix().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.Send(1, verb, body, files...); err != nil {
		return errors.Join(err, ctx.Err())
	}
	for {
		m, got, err := conn.Recv()
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("launcher: %s: %w", verb, ctx.Err())
			}
			return fmt.Errorf("%w: while it did %s: %w", ErrGone, verb, err)
		}
		if m.Verb == wire.VerbError {
			closeAll(got)
			var fail wire.Failure
			if err := json.Unmarshal(m.Body, &fail); err != nil {
				return fmt.Errorf("launcher: %s: %w", verb, err)
			}
			return &Failure{fail}
		}
		more, err := f(m, got)
		if err != nil || !more {
			return err
		}
	}
}

// decodeContainer decodes a Container and its pidfd.
func decodeContainer(m wire.Message, files []*os.File) (Container, error) {
	var out Container
	if err := json.Unmarshal(m.Body, &out); err != nil {
		closeAll(files)
		return Container{}, fmt.Errorf("launcher: container: %w", err)
	}
	if len(files) == 0 {
		return out, nil
	}
	closeAll(files[1:])
	out.PIDFD = files[0]
	return out, nil
}

// locate is decodeContainer with HostPID.
func locate(m wire.Message, files []*os.File) (Container, error) {
	out, err := decodeContainer(m, files)
	if err != nil || out.PIDFD == nil {
		return out, err
	}
	if out.HostPID, err = HostPIDOf(out.PIDFD); err != nil {
		return Container{}, errors.Join(err, out.PIDFD.Close())
	}
	return out, nil
}

// HostPIDOf reads which process a pidfd refers to, in the reader's own PID
// namespace (proc_pid_fdinfo(5)). It is 0 when that process was reaped.
func HostPIDOf(f *os.File) (int, error) {
	raw, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(f.Fd()))) // #nosec G304 -- procfs
	if err != nil {
		return 0, fmt.Errorf("launcher: pidfd: %w", err)
	}
	in := bufio.NewScanner(bytes.NewReader(raw))
	for in.Scan() {
		if v, ok := strings.CutPrefix(in.Text(), "Pid:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				return 0, fmt.Errorf("launcher: pidfd: %w", err)
			}
			return max(n, 0), nil // -1: reaped
		}
	}
	return 0, errors.New("launcher: the descriptor that came is no pidfd")
}

// Launch starts a container and returns when its command runs (exec has
// happened), with its pidfd. Files stay open for the caller.
func (c *Client) Launch(ctx context.Context, r LaunchRequest, files ...*os.File) (Container, error) {
	var out Container
	err := c.call(ctx, verbLaunch, r, files, func(m wire.Message, got []*os.File) (more bool, err error) {
		out, err = locate(m, got)
		return false, err
	})
	return out, err
}

// Run is Launch and Wait in one, for one-off containers: started is called once
// the command runs, with the container's name and pidfd, which it owns. When it
// fails, or ctx ends, the container goes on: see [Client.Kill].
func (c *Client) Run(ctx context.Context, r LaunchRequest, started func(Container) error, files ...*os.File) (cell.Exit, error) {
	r.Wait = true
	var exit cell.Exit
	running := false
	conn := c.spares.take()
	if conn == nil {
		var err error
		if conn, err = c.dial(ctx); err != nil {
			return exit, err
		}
	}
	defer c.spares.refill()
	err := c.ask(ctx, conn, verbLaunch, r, files, func(m wire.Message, got []*os.File) (more bool, err error) {
		if running {
			closeAll(got)
			return false, json.Unmarshal(m.Body, &exit)
		}
		running = true
		one, err := decodeContainer(m, got)
		if err != nil {
			return false, err
		}
		return true, started(one)
	})
	return exit, err
}

func (c *Client) end(ctx context.Context, verb, name string, grace time.Duration) (cell.Exit, error) {
	var exit cell.Exit
	err := c.call(ctx, verb, named{Name: name, GraceMillis: grace.Milliseconds()}, nil, func(m wire.Message, got []*os.File) (more bool, err error) {
		closeAll(got)
		return false, json.Unmarshal(m.Body, &exit)
	})
	return exit, err
}

// Rest has the launcher give up what it keeps ready for one-off runs, until the
// next one.
func (c *Client) Rest(ctx context.Context) error {
	return c.call(ctx, verbRest, struct{}{}, nil, func(_ wire.Message, got []*os.File) (more bool, err error) {
		closeAll(got)
		return false, nil
	})
}

// Wait blocks until the container has ended.
func (c *Client) Wait(ctx context.Context, name string) (cell.Exit, error) {
	return c.end(ctx, verbWait, name, 0)
}

// Stop asks the container to end (SIGTERM to its first process; the shim
// passes it on), kills its cgroup after grace, and returns how it ended.
func (c *Client) Stop(ctx context.Context, name string, grace time.Duration) (cell.Exit, error) {
	return c.end(ctx, verbStop, name, grace)
}

// Kill ends every process of the container at once.
func (c *Client) Kill(ctx context.Context, name string) (cell.Exit, error) {
	return c.end(ctx, verbKill, name, 0)
}

// List gives every container, running or ended. The caller closes the pidfds.
func (c *Client) List(ctx context.Context) ([]Container, error) {
	var out []Container
	err := c.call(ctx, verbList, struct{}{}, nil, func(m wire.Message, got []*os.File) (more bool, err error) {
		if m.Verb != verbContainer {
			closeAll(got)
			return false, nil
		}
		one, err := locate(m, got)
		out = append(out, one)
		return true, err
	})
	if err != nil {
		for _, o := range out {
			if o.PIDFD != nil {
				_ = o.PIDFD.Close()
			}
		}
		return nil, err
	}
	return out, nil
}

// Watch streams events until ctx ends, the launcher ends, or f fails. It first
// reports every running container as started, so nothing falls between List
// and Watch.
func (c *Client) Watch(ctx context.Context, f func(Event) error) error {
	return c.call(ctx, verbWatch, struct{}{}, nil, func(m wire.Message, got []*os.File) (more bool, err error) {
		closeAll(got)
		var e Event
		if err := json.Unmarshal(m.Body, &e); err != nil {
			return false, fmt.Errorf("launcher: event: %w", err)
		}
		return true, f(e)
	})
}

// Shutdown kills every container and ends the launcher; it returns when the
// launcher is gone.
func (c *Client) Shutdown(ctx context.Context) error {
	// A launcher waits for its connections before it ends, and one of an
	// earlier build for a request on each.
	c.spares.close()
	err := c.call(ctx, verbShutdown, struct{}{}, nil, func(_ wire.Message, got []*os.File) (more bool, err error) {
		closeAll(got)
		return false, nil
	})
	if err != nil {
		return err
	}
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("launcher: shutdown: %w", ctx.Err())
	}
}
