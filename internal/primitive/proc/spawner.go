package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
	"bulkhead/internal/wire"
)

// maxIdle is how many greeted connections to the launcher wait for a use.
const maxIdle = 2

// spawner is the way to the launcher. Each piece of code has a connection while
// it runs.
type spawner struct {
	output int // bytes that are kept of each output
	path   string

	mu     sync.Mutex
	idle   []*wire.Conn
	closed bool
}

// running is one piece of code.
type running struct {
	s              *spawner
	conn           *wire.Conn
	container      string
	stdout, stderr *os.File

	mu   sync.Mutex
	over bool // the connection is another's by now
}

// start has code run. An error is the way's; the launcher's own refusal is a
// *deny.Reason.
func (s *spawner) start(ctx context.Context, q wire.CodeRequest) (*running, error) {
	// A connection that waited may be dead without our knowing: once more.
	conn := s.take()
	if conn != nil {
		if r, err := s.ask(ctx, conn, q); !errors.Is(err, errLost) {
			return r, err
		}
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, away(err)
	}
	r, err := s.ask(ctx, conn, q)
	if errors.Is(err, errLost) {
		return nil, away(err)
	}
	return r, err
}

var errLost = errors.New("the connection was lost")

func away(err error) *deny.Reason {
	r := tool.Refuse(deny.ToolUnavailable, "code", "the agent's launcher does not answer: "+err.Error(), "try again; when it stays, run `bulkhead status` on the host")
	r.RetryAfter = 1
	return r
}

func (s *spawner) take() *wire.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) == 0 {
		return nil
	}
	c := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	return c
}

func (s *spawner) dial(ctx context.Context) (*wire.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	raw, err := d.DialContext(ctx, "unix", s.path)
	if err != nil {
		return nil, err
	}
	conn := wire.New(raw.(*net.UnixConn))
	if _, err := conn.Greet(wire.CodeProtocol, wire.CodeVersion); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func (s *spawner) ask(ctx context.Context, conn *wire.Conn, q wire.CodeRequest) (*running, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.Send(1, wire.VerbRunCode, q); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	m, files, err := conn.Recv()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	var started wire.CodeStarted
	if m.Verb == wire.VerbStarted && len(files) == 2 && json.Unmarshal(m.Body, &started) == nil {
		return &running{s: s, conn: conn, container: started.Container, stdout: files[0], stderr: files[1]}, nil
	}
	for _, f := range files {
		_ = f.Close()
	}
	if m.Verb != wire.VerbError {
		_ = conn.Close()
		return nil, fmt.Errorf("proc: the launcher answered %.40q with %d descriptors", m.Verb, len(files))
	}
	var fail wire.Failure
	if err := json.Unmarshal(m.Body, &fail); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proc: the launcher's answer: %w", err)
	}
	s.give(conn)
	return nil, tool.Refuse(deny.ToolUnavailable, "code", fail.Message, "wait until other code has ended; or name an image with that language under tools.code in bulkhead.yaml")
}

// give keeps a connection for another use.
func (s *spawner) give(c *wire.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.idle) >= maxIdle {
		_ = c.Close()
		return
	}
	s.idle = append(s.idle, c)
}

func (s *spawner) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.idle {
		_ = c.Close()
	}
	s.idle = nil
}

// kill asks for the end, which wait reports. What has ended is left alone.
func (r *running) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	if r.conn.Send(2, wire.VerbKillCode, struct{}{}) != nil {
		_ = r.conn.Close() // which kills as well
	}
}

// wait returns when nothing of the code is left. It is called once.
func (r *running) wait() (wire.CodeExited, error) {
	var out wire.CodeExited
	m, files, err := r.conn.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	if err != nil {
		_ = r.conn.Close()
		return out, away(err)
	}
	if m.Verb != wire.VerbExited || json.Unmarshal(m.Body, &out) != nil {
		_ = r.conn.Close()
		return out, fmt.Errorf("proc: the launcher answered %.40q %.200s", m.Verb, m.Body)
	}
	r.s.give(r.conn)
	return out, nil
}
