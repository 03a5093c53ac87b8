package dialer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a dialer that relays. How many connections there may be is
// [Config.Connections].
const (
	// relayBuffer bounds what waits in each direction of a pair, which is
	// memory of the dialer's.
	relayBuffer = 64 << 10
	// halfClosed is how long a destination may go on after the gateway has said
	// all: a little more than the gateway itself waits.
	halfClosed = 11 * time.Minute
)

// relays are the connections whose bytes pass through this process. The
// gateway holds one end of a pair of unix sockets, which leads nowhere else.
type relays struct {
	mu     sync.Mutex
	live   map[*relay]bool
	closed bool
	work   sync.WaitGroup
}

type relay struct {
	target   string // "name:port" behind the proxy; empty: direct
	up       *net.TCPConn
	down     *net.UnixConn
	deadline *time.Timer // nil: none
}

func newRelays() *relays { return &relays{live: map[*relay]bool{}} }

// start carries bytes between up, which it owns from now on, and the end of a
// pair that it gives. early is what up said already. At ends, when it is set,
// the connection is cut. keep counts up, when nothing else can fail.
func (r *relays) start(up *net.TCPConn, early []byte, target string, ends time.Time, keep func(syscall.Conn) error) (descriptor, error) {
	theirs, ours, err := pair()
	if err != nil {
		_ = up.Close()
		return none, err
	}
	one := &relay{target: target, up: up, down: ours}
	r.mu.Lock()
	defer r.mu.Unlock()
	err = net.ErrClosed
	if !r.closed {
		err = keep(up)
	}
	if err != nil {
		one.cut()
		theirs.close()
		return none, err
	}
	r.live[one] = true
	if !ends.IsZero() {
		one.deadline = time.AfterFunc(time.Until(ends), one.cut)
	}
	r.work.Go(func() {
		one.carry(early)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.live, one)
	})
	return theirs, nil
}

// end cuts the connections to a target, "name:port".
func (r *relays) end(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for one := range r.live {
		if one.target == target {
			one.cut()
		}
	}
}

// close cuts everything and waits.
func (r *relays) close() {
	r.mu.Lock()
	r.closed = true
	for one := range r.live {
		one.cut()
	}
	r.mu.Unlock()
	r.work.Wait()
}

func (o *relay) cut() {
	_ = o.up.Close()
	_ = o.down.Close()
}

// carry moves bytes both ways until both have ended. Each end is passed on by
// itself, so that a half-closed connection stays one; a failure ends both.
func (o *relay) carry(early []byte) {
	defer o.cut()
	if o.deadline != nil {
		defer o.deadline.Stop()
	}
	var down sync.WaitGroup
	down.Go(func() {
		if _, err := o.down.Write(early); err != nil {
			o.cut()
			return
		}
		// io.Copy has the kernel splice between TCP and a unix stream.
		if _, err := io.Copy(o.down, o.up); err != nil {
			o.cut()
			return
		}
		_ = o.down.CloseWrite()
	})
	if _, err := io.Copy(o.up, o.down); err != nil {
		o.cut()
	} else {
		_ = o.up.CloseWrite()
		_ = o.up.SetReadDeadline(time.Now().Add(halfClosed))
	}
	down.Wait()
}

// pair makes two connected unix stream sockets: one to pass on, one to keep.
func pair() (theirs descriptor, ours *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return none, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	theirs = descriptor(fds[0])
	mine := os.NewFile(uintptr(fds[1]), "relay") // #nosec G115 -- a descriptor
	defer func() { _ = mine.Close() }()
	for _, fd := range fds {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, relayBuffer); err != nil {
			theirs.close()
			return none, nil, fmt.Errorf("bound a pair of sockets: %w", err)
		}
	}
	c, err := net.FileConn(mine)
	if err != nil {
		theirs.close()
		return none, nil, err
	}
	ours, ok := c.(*net.UnixConn)
	if !ok {
		theirs.close()
		return none, nil, errors.Join(errors.New("a pair of unix sockets is none"), c.Close())
	}
	return theirs, ours, nil
}

// tcp takes a connected socket over as a connection.
func tcp(sock descriptor) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(sock), "connected") // #nosec G115 -- a descriptor
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(errors.New("a TCP socket is none"), c.Close())
	}
	return t, nil
}
