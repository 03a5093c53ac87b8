package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/wire"
)

// In a kernel that lets no descriptor out (engine.ShimConfig.Relayed) the shim
// stands between: it accepts for the gateway, and copies for the operator.

// door is where control connections come from.
type door interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// hatch is a door through which connections are passed that root accepted.
type hatch struct{ from *net.UnixConn }

func newHatch(f *os.File) (*hatch, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("control connection: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("control connection: not a unix socket"), c.Close())
	}
	return &hatch{u}, nil
}

// AcceptUnix waits for the next connection. [net.ErrClosed] means that none
// will come any more.
func (h *hatch) AcceptUnix() (*net.UnixConn, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := h.from.ReadMsgUnix(b[:], oob)
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || err == nil && n == 0 {
		return nil, net.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil || len(fds) != 1 {
			continue
		}
		unix.CloseOnExec(fds[0])
		return unixConn(os.NewFile(uintptr(fds[0]), "control")) // #nosec G115 -- a descriptor
	}
	return nil, errors.New("nothing was passed")
}

// Close ends AcceptUnix.
func (h *hatch) Close() error { return h.from.Close() }

// unixConn takes f over.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a %T was passed, not a unix socket", c), c.Close())
	}
	return u, nil
}

// open makes the listeners that this shim keeps.
func (h *handover) open() error {
	for i, f := range h.files {
		l, err := net.FileListener(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("listen on %s: %w", h.listeners[i].Address, err)
		}
		h.kept = append(h.kept, l)
	}
	h.files = nil
	return nil
}

// announce tells the gateway which listeners there are.
func (h *handover) announce(conn *wire.Conn) error {
	return ask(conn, 1, wire.VerbListen, wire.ListenRequest{Token: h.token, Listeners: h.listeners, Relayed: true})
}

// relay serves the listeners until ctx ends.
func (h *handover) relay(ctx context.Context) {
	var work sync.WaitGroup
	stop := context.AfterFunc(ctx, func() {
		for _, l := range h.kept {
			_ = l.Close()
		}
	})
	defer stop()
	for i, l := range h.kept {
		work.Go(func() {
			for {
				c, err := l.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					time.Sleep(10 * time.Millisecond) // out of descriptors: some will close
					continue
				}
				work.Go(func() { h.carry(ctx, c.(*net.TCPConn), h.listeners[i].Target) })
			}
		})
	}
	work.Wait()
}

// relayPatience is how long a client waits for a gateway that is being made
// anew, as it would in a listener's queue.
const relayPatience = 30 * time.Second

// carry takes one client to the gateway.
func (h *handover) carry(ctx context.Context, client *net.TCPConn, target string) {
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, relayPatience)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := h.dial(ctx)
		if err == nil {
			err = ask(conn, 1, wire.VerbRelay, wire.RelayRequest{Token: h.token, Target: target})
			if err == nil {
				join(client, conn.Unix())
				return
			}
			_ = conn.Close()
		}
		var refused *refusal
		if errors.As(err, &refused) || ctx.Err() != nil {
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// dial reaches the gateway and greets it.
func (h *handover) dial(ctx context.Context) (*wire.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", h.socket)
	if err != nil {
		return nil, fmt.Errorf("reach the gateway: %w", err)
	}
	conn := wire.New(raw.(*net.UnixConn))
	if _, err := conn.Greet(wire.GatewayProtocol, wire.GatewayVersion); err != nil {
		return nil, errors.Join(fmt.Errorf("greet the gateway: %w", err), conn.Close())
	}
	return conn, nil
}

// refusal is the gateway's no, which asking again does not change.
type refusal struct{ message string }

func (r *refusal) Error() string { return "the gateway refused: " + r.message }

// ask sends a request without descriptors and waits for its "ok".
func ask(conn *wire.Conn, id uint64, verb string, body any) error {
	if err := conn.Send(id, verb, body); err != nil {
		return err
	}
	m, files, err := conn.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return err
	}
	if m.Verb == wire.VerbOK {
		return nil
	}
	var fail wire.Failure
	if err := json.Unmarshal(m.Body, &fail); err != nil || fail.Message == "" {
		return fmt.Errorf("the gateway answered %q to %s", m.Verb, verb)
	}
	return &refusal{fail.Message}
}

// stream is one side of what is copied.
type stream interface {
	net.Conn
	CloseWrite() error
}

// join copies both ways until both sides have ended, and closes them.
func join(x, y stream) {
	var both sync.WaitGroup
	for _, way := range []struct{ from, to stream }{{x, y}, {y, x}} {
		both.Go(func() {
			_, err := io.Copy(way.to, way.from)
			_ = way.to.CloseWrite()
			if err != nil { // one direction is broken: so is the other
				_ = x.Close()
				_ = y.Close()
			}
		})
	}
	both.Wait()
	_ = x.Close()
	_ = y.Close()
}

// passed takes what came with a request, which is exactly n descriptors.
func passed(files []*os.File, n int) error {
	if len(files) == n {
		return nil
	}
	for _, f := range files {
		_ = f.Close()
	}
	return fmt.Errorf("%d descriptors came with the request, %d are needed: this container's kernel lets none out", len(files), n)
}

// far is an operator's end of a terminal that is relayed.
type far struct {
	conn *net.UnixConn
	work sync.WaitGroup
}

// relayTerminal copies between a terminal's master and an operator's socket.
func relayTerminal(master *os.File, f *os.File) (*far, error) {
	c, err := unixConn(f)
	if err != nil {
		return nil, err
	}
	x := &far{conn: c}
	go func() { _, _ = io.Copy(master, c) }() // ends with close
	x.work.Go(func() {
		_, _ = io.Copy(c, master) // EIO is the end of a terminal whose last user left
		_ = c.CloseWrite()
	})
	return x, nil
}

// close ends the relay once what the process wrote last is through.
func (x *far) close(master *os.File) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.work.Wait()
	}()
	t := time.NewTimer(drainTime)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C: // a background process holds the terminal
	}
	_ = master.Close()
	_ = x.conn.Close()
	<-done
}

// drainTime is how long what a process wrote last may take to its operator.
const drainTime = time.Second
