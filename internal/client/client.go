// Package client asks the warden, over its unix socket, for what an operator
// wants. One request goes over one connection (internal/wire, warden protocol).
//
// It keeps the protocol and turns each way in which it can fail into an
// [Error] that says what failed, why, what to change, and with which code the
// command should end. It keeps no state, starts no warden, and prints nothing.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"bulkhead/internal/wire"
)

// helloTimeout is how long a warden may take to greet. It answers from memory;
// only a machine that is stuck takes longer.
const helloTimeout = 10 * time.Second

// Client reaches one warden. It is safe for concurrent use.
type Client struct {
	Socket string // layout.Host.WardenSocket
	Build  string // of this program
}

// Error is every failure of this package.
type Error struct {
	What string // what failed and why
	Mend string // what to change; may be empty when the warden names none
	Exit int    // one of the wire.Exit codes
	Err  error  // the cause, if there is one

	unasked bool // no warden had read the request
}

func (e *Error) Error() string { return e.What }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// NotRunning says whether err means that there is no warden, or none any more:
// one that ends resets connections that it has not taken yet. The request was
// not read in either case, and may be sent to the next warden.
func NotRunning(err error) bool {
	var e *Error
	if !errors.As(err, &e) || !e.unasked {
		return false
	}
	for _, gone := range []error{syscall.ENOENT, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// Ping greets the warden and gives the name of its build.
func (c *Client) Ping(ctx context.Context) (build string, err error) {
	conn, hello, err := c.dial(ctx, nil)
	if err != nil {
		return "", err
	}
	return hello.Build, conn.Close()
}

// Call sends one request and decodes its result into out, which may be nil.
// progress may be nil; it is called on this goroutine.
func (c *Client) Call(ctx context.Context, verb string, body, out any, progress func(wire.Progress)) error {
	_, err := c.call(ctx, verb, body, out, progress)
	return err
}

// Logs gives the log files of one container, oldest first, each opened anew
// for the caller, who closes them. Read them with ReadAt: their position may
// be shared.
func (c *Client) Logs(ctx context.Context, req wire.LogsRequest) ([]*os.File, error) {
	return c.call(ctx, wire.VerbLogs, req, nil, nil)
}

func (c *Client) call(ctx context.Context, verb string, body, out any, progress func(wire.Progress)) ([]*os.File, error) {
	conn, _, err := c.dial(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Unix().SetDeadline(time.Now()) })
	defer stop()
	if err := conn.Send(1, verb, body); err != nil {
		return nil, c.lost(ctx, verb, err)
	}
	m, files, err := answer(conn, progress)
	if err != nil {
		return nil, c.lost(ctx, verb, err)
	}
	if m.Verb != wire.VerbResult && (verb != wire.VerbLogs || m.Verb != wire.VerbOK) {
		closeAll(files)
		return nil, c.lost(ctx, verb, fmt.Errorf("unexpected answer %q", m.Verb))
	}
	if out != nil {
		if err := json.Unmarshal(m.Body, out); err != nil {
			closeAll(files)
			return nil, c.lost(ctx, verb, err)
		}
	}
	return files, nil
}

// answer reads past progress to the first answer that is none. A refusal by
// the warden comes back as an *Error.
func answer(conn *wire.Conn, progress func(wire.Progress)) (wire.Message, []*os.File, error) {
	var files []*os.File
	for {
		m, more, err := conn.Recv()
		files = append(files, more...)
		if err != nil {
			closeAll(files)
			return m, nil, err
		}
		switch m.Verb {
		case wire.VerbProgress:
			var p wire.Progress
			if err := json.Unmarshal(m.Body, &p); err == nil && progress != nil {
				progress(p)
			}
		case wire.VerbError:
			closeAll(files)
			return m, nil, failure(m.Body)
		default:
			return m, files, nil
		}
	}
}

func failure(body json.RawMessage) error {
	var f wire.Failure
	if err := json.Unmarshal(body, &f); err != nil || f.Message == "" {
		return fmt.Errorf("unreadable error %q", body)
	}
	if f.Exit == 0 {
		f.Exit = wire.ExitFailed
	}
	return &Error{What: f.Message, Mend: f.Mend, Exit: f.Exit}
}

// dial connects and exchanges hellos. ask may be nil; it sends the request
// right behind our hello, without a wait for the warden's.
func (c *Client) dial(ctx context.Context, ask func(*wire.Conn) error) (*wire.Conn, wire.Hello, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return nil, wire.Hello{}, c.unreachable(err)
	}
	unix, ok := raw.(*net.UnixConn)
	if !ok { // "unix" gives nothing else
		return nil, wire.Hello{}, errors.Join(errors.New("client: not a unix socket"), raw.Close())
	}
	conn := wire.New(unix)
	hello, err := c.greet(conn, ask)
	if err != nil {
		return nil, hello, errors.Join(err, conn.Close())
	}
	return conn, hello, nil
}

func (c *Client) greet(conn *wire.Conn, ask func(*wire.Conn) error) (wire.Hello, error) {
	silent := func(err error) error {
		return &Error{
			What: fmt.Sprintf("the warden at %s did not greet: %v", c.Socket, err),
			Mend: "see its log; if it hangs, end it and run `bulkhead up` again: agents go on meanwhile",
			Exit: wire.ExitNoWarden, Err: err, unasked: true,
		}
	}
	_ = conn.Unix().SetDeadline(time.Now().Add(helloTimeout))
	if err := conn.Send(0, "hello", wire.Hello{Protocol: wire.WardenProtocol, Version: wire.WardenVersion, Build: c.Build}); err != nil {
		return wire.Hello{}, silent(err)
	}
	if ask != nil {
		if err := ask(conn); err != nil {
			return wire.Hello{}, silent(err)
		}
	}
	m, files, err := conn.Recv()
	closeAll(files)
	if err != nil {
		return wire.Hello{}, silent(err)
	}
	var h wire.Hello
	if err := json.Unmarshal(m.Body, &h); err != nil || m.Verb != "hello" {
		return h, silent(fmt.Errorf("answered %q", m.Verb))
	}
	if h.Protocol != wire.WardenProtocol || h.Version != wire.WardenVersion {
		return h, &Error{
			What: fmt.Sprintf("%s speaks %s version %d (build %s); this program speaks %s version %d",
				c.Socket, h.Protocol, h.Version, orUnknown(h.Build), wire.WardenProtocol, wire.WardenVersion),
			Mend: "use the bulkhead program that came with the running warden, or restart the warden with this build (agents go on)",
			Exit: wire.ExitNoWarden,
		}
	}
	_ = conn.Unix().SetDeadline(time.Time{})
	return h, nil
}

func (c *Client) unreachable(err error) error {
	e := &Error{Exit: wire.ExitNoWarden, Err: err, unasked: true}
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		e.What = "the warden is not running (nothing listens on " + c.Socket + ")"
		e.Mend = "start it with `sudo bulkhead up`"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		e.What = "this user may not reach the warden at " + c.Socket
		e.Mend = "run the command with sudo, or join the group bulkhead-operators to look without changing"
		e.Exit = wire.ExitRefused
	default:
		e.What = fmt.Sprintf("the warden at %s cannot be reached: %v", c.Socket, err)
		e.Mend = "see whether it runs: `bulkhead status`"
	}
	return e
}

// lost explains a connection that ended before its result. An [Error] from the
// warden stays as it is.
func (c *Client) lost(ctx context.Context, verb string, err error) error {
	var known *Error
	switch {
	case errors.As(err, &known):
		return err
	case ctx.Err() != nil:
		return &Error{
			What: verb + " was interrupted; the warden may still finish it",
			Mend: "see where it stands with `bulkhead status`; every command is safe to repeat", Exit: wire.ExitFailed, Err: ctx.Err(),
		}
	}
	return &Error{
		What: fmt.Sprintf("the warden ended the connection during %s: %v", verb, err),
		Mend: "see its log, then run the command again: every command is safe to repeat", Exit: wire.ExitNoWarden, Err: err,
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
