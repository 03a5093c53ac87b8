package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/wire"
)

// refusedAttach is why nobody can be attached, with the way out.
type refusedAttach struct{ why, mend string }

func (r *refusedAttach) Error() string { return r.why }

// attach joins an operator with the terminal of the container's command, which
// goes on when the operator leaves. In a session it is started by that.
func (s *shim) attach(conn *wire.Conn, m wire.Message, files []*os.File) error {
	var r wire.AttachRequest
	if err := json.Unmarshal(m.Body, &r); err != nil {
		closeAll(files)
		return fmt.Errorf("attach: %w", err)
	}
	near, given, err := s.attachEnds(files)
	if err != nil {
		return err
	}
	defer closeAll(given)
	run, err := s.attachable(r)
	if err != nil {
		return errors.Join(err, near.Close())
	}
	v, err := run.console.attach(near)
	if err != nil {
		return errors.Join(err, near.Close())
	}
	defer run.console.detach(v)
	if err := conn.Send(m.ID, wire.VerbStarted, wire.ExecStarted{PID: run.pid}, given...); err != nil {
		return err
	}
	closeAll(given)
	// One that fills its screen draws it when its size changes: so it is changed,
	// also for an operator whose terminal is as large as the last one's.
	if r.Rows > 0 && r.Cols > 0 {
		_ = setSize(run.console.master, r.Rows+1, r.Cols)
		_ = setSize(run.console.master, r.Rows, r.Cols)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		run.console.obey(conn)
	}()
	select {
	case <-left:
		return nil
	case <-v.done: // the operator takes no more, or the command has ended
	}
	select {
	case <-run.ended:
		err = conn.Send(m.ID, wire.VerbExited, run.exit)
	default:
		fail(conn, m.ID, &refusedAttach{"attach: this terminal did not take what the command wrote, and was let go", "attach again; the command goes on"})
	}
	_ = conn.Close()
	<-left
	return err
}

// obey changes the terminal's size until the operator leaves.
func (c *console) obey(conn *wire.Conn) {
	for {
		m, files, err := conn.Recv()
		closeAll(files)
		if err != nil {
			return
		}
		var r wire.Resize
		if m.Verb == wire.VerbResize && json.Unmarshal(m.Body, &r) == nil {
			_ = setSize(c.master, r.Rows, r.Cols)
		}
	}
}

// attachEnds are the shim's end of what an operator sees and types, and what is
// to be given to the operator: nothing when its own end came with the request.
func (s *shim) attachEnds(files []*os.File) (near *net.UnixConn, given []*os.File, err error) {
	if s.cfg.Relayed {
		if err := passed(files, 1); err != nil {
			return nil, nil, fmt.Errorf("attach: %w", err)
		}
		near, err = unixConn(files[0])
		return near, nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("attach: a pair of sockets: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), "terminal")                   // #nosec G115 -- a descriptor
	near, err = unixConn(os.NewFile(uintptr(fds[0]), "to operator")) // #nosec G115 -- a descriptor
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("attach: %w", err), far.Close())
	}
	return near, []*os.File{far}, nil
}

// attachable is the command with its terminal.
func (s *shim) attachable(r wire.AttachRequest) (*running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return nil, &refusedAttach{"attach: the container is being stopped", "look at bulkhead status"}
	case s.command != nil && s.command.console == nil:
		return nil, &refusedAttach{
			"attach: its command has no terminal",
			"write `terminal: true` for the agent in the manifest; `bulkhead logs --follow` shows what it prints, `bulkhead exec` starts another command",
		}
	case s.command != nil:
		return s.command, nil
	case s.cfg.Mode != engine.ShimSession:
		return nil, &refusedAttach{"attach: its command does not run", "look at bulkhead status"}
	case len(s.cfg.Command) == 0:
		return nil, &refusedAttach{
			"attach: the agent is a session without a command",
			"write its `command` in the manifest, or start one with `bulkhead exec`",
		}
	}
	if err := s.start(s.with(r.Env), true); err != nil {
		return nil, err
	}
	return s.command, nil
}
