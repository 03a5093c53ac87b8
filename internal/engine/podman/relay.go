package podman

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// carrier accepts in place of a shim that cannot: a listening socket does not
// work inside of gVisor, but a connected one does, and connected ones can be
// passed in over it. What is passed was accepted on the socket that only root
// can reach, so the shim takes whatever comes for root's.
type carrier struct {
	listener *net.UnixListener
	to       *net.UnixConn
}

// newCarrier gives the container's end as well, which the caller closes.
func newCarrier(control *net.UnixListener) (*carrier, *os.File, error) {
	f, err := control.File()
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok { // a unix listener's file is nothing else
		return nil, nil, errors.Join(errors.New("control socket: not a unix socket"), l.Close())
	}
	u.SetUnlinkOnClose(false)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("control socket: %w", err), u.Close())
	}
	theirs := os.NewFile(uintptr(fds[1]), "control") // #nosec G115 -- a descriptor
	ours := os.NewFile(uintptr(fds[0]), "carrier")   // #nosec G115 -- a descriptor
	c, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("control socket: %w", err), u.Close(), theirs.Close())
	}
	return &carrier{listener: u, to: c.(*net.UnixConn)}, theirs, nil
}

func (c *carrier) close() {
	_ = c.listener.Close()
	_ = c.to.Close()
}

// run passes connections in until close.
func (c *carrier) run() {
	for {
		conn, err := c.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: some will close
			continue
		}
		_ = c.pass(conn) // a connection that does not arrive is closed, which its caller sees
	}
}

func (c *carrier) pass(conn *net.UnixConn) error {
	defer func() { _ = conn.Close() }()
	f, err := conn.File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = raw.Control(func(fd uintptr) {
		_, _, werr = c.to.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil) // #nosec G115 -- a descriptor
	})
	return errors.Join(err, werr)
}
