package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/lookpath"
	"bulkhead/internal/wire"
)

// serve answers the shim protocol until the listener or ctx ends.
func (s *shim) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = s.control.Close() })
	defer stop()
	for {
		c, err := s.control.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: some will close
			continue
		}
		s.wg.Go(func() { s.connection(c) })
	}
}

// connection answers requests until the peer closes. An exec or an attach takes
// the connection over.
func (s *shim) connection(c *net.UnixConn) {
	conn := wire.New(c)
	defer func() { _ = conn.Close() }()
	if !s.cfg.Relayed && !operator(c) { // else root passed it in
		return
	}
	if _, err := conn.Greet(wire.ShimProtocol, wire.ShimVersion); err != nil {
		return
	}
	for {
		m, files, err := conn.Recv()
		if !s.cfg.Relayed { // nothing of an operator's comes in
			closeAll(files)
			files = nil
		}
		if err != nil {
			return
		}
		switch m.Verb { // these two take the connection over
		case wire.VerbExec:
			err = s.exec(conn, m, files)
		case wire.VerbAttach:
			err = s.attach(conn, m, files)
		default:
			if err := s.answer(conn, m, files); err != nil {
				fail(conn, m.ID, err)
			}
			continue
		}
		if err != nil {
			fail(conn, m.ID, err)
		}
		return
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func fail(conn *wire.Conn, id uint64, err error) {
	f := wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}
	var failed *execError
	if errors.As(err, &failed) {
		f.Exit, f.Mend = lookpath.ExitStatus(err), "name a program that is in the container's image"
	}
	var refused *refusedAttach
	if errors.As(err, &refused) {
		f.Mend = refused.mend
	}
	_ = conn.Send(id, wire.VerbError, f)
}

func (s *shim) answer(conn *wire.Conn, m wire.Message, files []*os.File) error {
	if m.Verb == wire.VerbConnect {
		return s.connect(conn, m, files)
	}
	closeAll(files)
	switch m.Verb {
	case wire.VerbState:
		var r wire.StateRequest
		if err := json.Unmarshal(m.Body, &r); err != nil {
			return fmt.Errorf("state: %w", err)
		}
		if r.WaitMillis <= 0 {
			return conn.Send(m.ID, wire.VerbOK, s.state())
		}
		return conn.Send(m.ID, wire.VerbOK, s.stateWhenReady(time.Duration(min(r.WaitMillis, maxWait.Milliseconds()))*time.Millisecond))
	case wire.VerbStop:
		var r wire.StopRequest
		if err := json.Unmarshal(m.Body, &r); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
		// The answer comes first: the end of the command ends this process.
		if err := conn.Send(m.ID, wire.VerbOK, struct{}{}); err != nil {
			return err
		}
		s.stop(unix.SIGTERM, max(time.Duration(r.GraceMillis)*time.Millisecond, time.Millisecond))
		return nil
	}
	return fmt.Errorf("verb %q is not one, or needs an exec first", m.Verb)
}

func (s *shim) state() wire.ShimState {
	st := wire.ShimState{Build: s.cfg.Build, Landlock: s.cfg.Landlock}
	if s.handover != nil {
		st.Listeners, st.Waiting = s.handover.state()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.command != nil {
		st.PID = s.command.pid
	} else if s.cfg.Mode != engine.ShimSession && st.Waiting == "" {
		st.Waiting = "the command does not run"
	}
	st.Ready = st.Waiting == ""
	return st
}

// operator says whether the peer may give orders: real root, which a
// container without id 0 sees as the overflow id (user_namespaces(7)). The
// container's own processes show their own id; they cannot reach the socket
// either, it lies in a folder of root's that is not mounted here.
func operator(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) // #nosec G115 -- a descriptor
	})
	if err != nil || cerr != nil {
		return false
	}
	const overflow = 65534
	return cred.Uid != uint32(os.Getuid()) && (cred.Uid == 0 || cred.Uid == overflow) // #nosec G115 -- a user id
}
