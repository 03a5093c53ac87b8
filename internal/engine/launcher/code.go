package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/identity"
	"bulkhead/internal/wire"
)

// CodeConfig says in what the launcher runs code for the agent's gateway. It is
// the warden's word; the gateway has no part in it.
type CodeConfig struct {
	// Spec is the cell's, of role run, without name, cgroup and command.
	Spec engine.Spec `json:"spec"`
	// Gateway is the host id that may ask. Zero lets root alone ask.
	Gateway uint32 `json:"gateway"`
	// Running is how many pieces of code may run at a time.
	Running int `json:"running"`
}

// Check says what is wrong.
func (c *CodeConfig) Check() error {
	switch {
	case c.Spec.Role != engine.RoleRun || len(c.Spec.Init) > 0 || c.Spec.Decoy:
		return errors.New("launcher: code runs in plain one-off containers only")
	case c.Spec.Network.Host || len(c.Spec.Network.Loopback) > 0:
		return errors.New("launcher: code has no network")
	case c.Running <= 0:
		return errors.New("launcher: the bound of code that runs at a time must be 1 or more")
	}
	return nil
}

// CodePrefix begins the names of containers in which code runs, or will: those
// that wait for some are among them.
const CodePrefix = "code-"

// maxCodeConns bounds the gateway's connections beyond those that run code.
const maxCodeConns = 8

// codeServer runs code for the agent's gateway.
type codeServer struct {
	cfg    CodeConfig
	all    *containers
	cancel context.CancelFunc
	conns  chan struct{}
	slots  chan struct{}
	wg     sync.WaitGroup

	mu     sync.Mutex
	warm   map[string][]*codeCell // by language
	making map[string]int
	idle   map[string]*time.Timer
	closed bool
}

// serveCode answers on ln until it is closed.
func (cs *containers) serveCode(cfg CodeConfig, ln *net.UnixListener) *codeServer {
	ctx, cancel := context.WithCancel(context.Background())
	s := &codeServer{
		cfg: cfg, all: cs, cancel: cancel, conns: make(chan struct{}, cfg.Running+maxCodeConns), slots: make(chan struct{}, cfg.Running),
		warm: map[string][]*codeCell{}, making: map[string]int{}, idle: map[string]*time.Timer{},
	}
	s.wg.Go(func() {
		if err := wire.Serve(ctx, ln, s.connection); err != nil {
			fmt.Fprintln(os.Stderr, "bulkhead launcher: code:", err)
		}
	})
	return s
}

// close kills all code and waits.
func (s *codeServer) close() {
	s.mu.Lock()
	s.closed = true
	for _, t := range s.idle {
		t.Stop()
	}
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	for _, l := range wire.CodeLanguages() {
		s.cool(l)
	}
	s.wg.Wait()
}

// connection runs one piece of code after the other.
func (s *codeServer) connection(ctx context.Context, c *wire.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	defer func() { _ = c.Close() }()
	peer, err := identity.PeerOf(c.Unix())
	if err != nil || peer.UID != s.cfg.Gateway || peer.UID == identity.Overflow {
		return
	}
	select {
	case s.conns <- struct{}{}:
		defer func() { <-s.conns }()
	default:
		return
	}
	if _, err := c.Greet(wire.CodeProtocol, wire.CodeVersion); err != nil {
		return
	}
	said := make(chan wire.Message)
	work.Go(func() {
		defer cancel() // the gateway has left: what runs is over
		for {
			m, files, err := c.Recv()
			closeAll(files)
			if err != nil {
				return
			}
			select {
			case said <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-said:
			switch m.Verb {
			case wire.VerbKillCode: // it has ended by itself meanwhile
				continue
			case wire.VerbRunCode:
			default:
				return
			}
			if err := s.answer(ctx, c, m, said); err != nil {
				if c.Send(m.ID, wire.VerbError, wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}) != nil {
					return
				}
			}
		}
	}
}

func parseCode(body []byte) (q wire.CodeRequest, limit time.Duration, err error) {
	if err := json.Unmarshal(body, &q); err != nil {
		return q, 0, fmt.Errorf("launcher: code: %w", err)
	}
	limit = time.Duration(q.Limits.Millis) * time.Millisecond
	switch {
	case !slices.Contains(wire.CodeLanguages(), q.Language):
		return q, 0, fmt.Errorf("launcher: code: language %.40q is not one", q.Language)
	case len(q.Code) > wire.MaxCode:
		return q, 0, fmt.Errorf("launcher: code: it has %d bytes; at most %d are taken", len(q.Code), wire.MaxCode)
	case q.Limits.Millis > wire.MaxCodeDuration.Milliseconds() || limit < wire.MinCodeDuration || limit > wire.MaxCodeDuration:
		return q, 0, fmt.Errorf("launcher: code: it may run for %s to %s", wire.MinCodeDuration, wire.MaxCodeDuration)
	}
	return q, limit, nil
}

// answer runs one piece of code. An error means that none ran, or that how it
// ended is not known.
func (s *codeServer) answer(ctx context.Context, c *wire.Conn, m wire.Message, said <-chan wire.Message) error {
	q, limit, err := parseCode(m.Body)
	if err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return fmt.Errorf("launcher: code: %d pieces of code run already, as many as may", cap(s.slots))
	}
	began := time.Now()
	cell, err := s.take(ctx, q.Language)
	if err != nil {
		return err
	}
	defer s.refill(q.Language)
	defer cell.release()
	s.wg.Go(func() { cell.give(q.Code) })
	if err := c.Send(m.ID, wire.VerbStarted, wire.CodeStarted{Container: cell.c.spec.Name}, cell.stdout, cell.stderr); err != nil {
		return errors.Join(err, cell.kill())
	}
	cell.closeOutput()
	out := wire.CodeExited{}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for over := false; !over; {
		select {
		case <-cell.c.proc.Done():
			over = true
		case <-timer.C:
			out.TimedOut, over = true, true
		case <-ctx.Done():
			over = true
		case k := <-said:
			over = k.Verb == wire.VerbKillCode
		}
	}
	// Also when it has ended: a process may have left the PID namespace's care
	// only by dying, but nothing is said before the cgroup is seen empty.
	if err := cell.kill(); err != nil {
		return err
	}
	exit, err := cell.c.proc.Wait()
	if err != nil {
		return err
	}
	out.Code, out.Signal, out.OOM, out.Microsecs = exit.Code, exit.Signal, exit.OOM, time.Since(began).Microseconds()
	return c.Send(m.ID, wire.VerbExited, out)
}
