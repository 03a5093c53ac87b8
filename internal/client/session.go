package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/wire"
)

// drainTime is how long output may still come after the process ended. What a
// background child keeps open longer is left.
const drainTime = time.Second

// Session is one process that the warden started for the operator.
type Session struct {
	client *Client
	verb   string
	conn   *wire.Conn
	tty    *os.File // with a terminal: everything
	stdin  *os.File // without: the write end
	stdout *os.File
	stderr *os.File
	keys   *detachKeys // nil: nothing that is typed ends the session
}

// ErrDetached says that the operator left what goes on.
var ErrDetached = errors.New("client: detached")

// Start asks for a process (wire.VerbExec with an AgentExec, wire.VerbRun with
// a RunRequest) and returns once it runs. The caller runs [Session.Run].
func (c *Client) Start(ctx context.Context, verb string, body any, terminal bool, progress func(wire.Progress)) (*Session, error) {
	conn, _, err := c.dial(ctx, func(conn *wire.Conn) error { return conn.Send(1, verb, body) })
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Unix().SetDeadline(time.Now()) })
	defer stop()
	fail := func(err error) (*Session, error) { return nil, errors.Join(c.lost(ctx, verb, err), conn.Close()) }
	m, files, err := answer(conn, progress)
	if err != nil {
		return fail(err)
	}
	want := 3
	if terminal {
		want = 1
	}
	if m.Verb != wire.VerbStarted || len(files) != want {
		closeAll(files)
		return fail(fmt.Errorf("answer %q with %d descriptors, want %q with %d", m.Verb, len(files), wire.VerbStarted, want))
	}
	for i, f := range files {
		if files[i], err = pollable(f); err != nil {
			closeAll(files)
			return fail(err)
		}
	}
	s := &Session{client: c, verb: verb, conn: conn}
	if terminal {
		s.tty = files[0]
	} else {
		s.stdin, s.stdout, s.stderr = files[0], files[1], files[2]
	}
	return s, nil
}

// LeaveOn makes the two bytes, typed one after the other, end the session with
// [ErrDetached]. It is called before [Session.Run].
func (s *Session) LeaveOn(first, second byte) {
	s.keys = &detachKeys{first: first, second: second}
}

// Resize tells the size of the operator's terminal.
func (s *Session) Resize(rows, cols uint16) error {
	return s.conn.Send(0, wire.VerbResize, wire.Resize{Rows: rows, Cols: cols})
}

// Signal sends a signal to the process.
func (s *Session) Signal(number int) error {
	return s.conn.Send(0, wire.VerbSignal, wire.Signal{Number: number})
}

// Run carries input and output until the process ended, and closes everything.
// in may be nil; it is read only while the process runs and is left open. When
// ctx ends, the connection closes, and with it the process's whole session.
func (s *Session) Run(ctx context.Context, in *os.File, out, errout io.Writer) (wire.ExecExited, error) {
	defer func() { _ = s.conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Unix().SetDeadline(time.Now()) })
	defer stop()

	var output sync.WaitGroup
	into, outputs := s.stdin, []*os.File{s.stdout, s.stderr}
	if s.tty != nil {
		into, outputs = s.tty, []*os.File{s.tty}
	}
	endInput, err := s.input(in, into)
	if err != nil {
		return wire.ExecExited{}, err
	}
	for i, from := range outputs {
		to := out
		if i == 1 {
			to = errout
		}
		output.Go(func() {
			// A terminal whose last user left gives EIO: that is its end.
			_, _ = io.Copy(to, from)
		})
	}
	exited, err := s.wait()
	endInput()
	if err != nil {
		closeAll(outputs)
	} else {
		for _, f := range outputs {
			_ = f.SetReadDeadline(time.Now().Add(drainTime))
		}
	}
	output.Wait()
	closeAll(outputs)
	if s.keys.typed() {
		return exited, ErrDetached
	}
	if err != nil {
		return exited, s.client.lost(ctx, s.verb, err)
	}
	return exited, nil
}

// input starts to copy in to the process. end stops that and waits for it.
func (s *Session) input(in, into *os.File) (end func(), err error) {
	if in == nil {
		if s.stdin != nil {
			_ = s.stdin.Close() // the process sees the end of its input
		}
		return func() {}, nil
	}
	// A pipe that becomes readable when the process ended wakes the reader of
	// in, which may be a terminal that nobody types on.
	wakeR, wakeW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	var feeding sync.WaitGroup
	feeding.Go(func() {
		if feed(in, wakeR, into, s.keys) {
			_ = s.conn.Unix().SetDeadline(time.Now()) // which ends wait
		}
		if s.stdin != nil {
			_ = s.stdin.Close()
		}
	})
	return func() {
		_ = wakeW.Close()
		_ = into.SetWriteDeadline(time.Now()) // a child may hold the pipe and never read
		feeding.Wait()
		_ = wakeR.Close()
	}, nil
}

// wait reads until the process ended.
func (s *Session) wait() (wire.ExecExited, error) {
	var exited wire.ExecExited
	for {
		m, files, err := answer(s.conn, nil)
		closeAll(files)
		if err != nil {
			return exited, err
		}
		if m.Verb == wire.VerbExited {
			return exited, json.Unmarshal(m.Body, &exited)
		}
	}
}

// feed copies in to the process until in ends, the process takes no more, wake
// is closed at its other side, or the keys are typed, which it says. It never
// changes in's mode, which the operator's shell shares.
func feed(in, wake, to *os.File, keys *detachKeys) (left bool) {
	from, ok := number(in)
	until, ok2 := number(wake)
	if !ok || !ok2 {
		return false
	}
	buf := make([]byte, 32<<10)
	for {
		fds := []unix.PollFd{{Fd: from, Events: unix.POLLIN}, {Fd: until, Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return false
		}
		if fds[1].Revents != 0 {
			return false
		}
		n, err := unix.Read(int(from), buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil || n <= 0:
			return false
		}
		b, left := keys.pass(buf[:n])
		if _, err := to.Write(b); err != nil || left {
			return left
		}
	}
}

// number gives f's descriptor without changing its mode, as File.Fd might.
func number(f *os.File) (fd int32, ok bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(n uintptr) { fd = int32(n) }) // #nosec G115 -- a descriptor
	return fd, err == nil
}

// pollable gives f as a file whose reads can have a deadline: f itself, when it
// came that way, or a new one in exchange for f.
func pollable(f *os.File) (*os.File, error) {
	if err := f.SetDeadline(time.Time{}); err == nil {
		return f, nil
	}
	defer func() { _ = f.Close() }()
	raw, err := f.SyscallConn()
	if err != nil {
		return f, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(n uintptr) {
		fd, dupErr = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return f, err
	}
	if dupErr != nil {
		return f, dupErr
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return f, errors.Join(err, syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), "passed"), nil // #nosec G115 -- a descriptor
}
