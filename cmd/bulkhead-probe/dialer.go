package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// dialer speaks the dialer protocol as a captured gateway would.
type dialer struct{ conn *wire.Conn }

func openDialer(path string) (*dialer, error) {
	c, err := net.DialTimeout("unix", path, patience)
	if err != nil {
		return nil, err
	}
	d := &dialer{conn: wire.New(c.(*net.UnixConn))}
	if err := d.conn.Send(0, wire.VerbHello, wire.Hello{Protocol: wire.DialerProtocol, Version: wire.DialerVersion}); err != nil {
		return nil, errors.Join(err, d.conn.Close())
	}
	if _, _, err := d.conn.Recv(); err != nil {
		return nil, errors.Join(fmt.Errorf("dialer's hello: %w", err), d.conn.Close())
	}
	return d, nil
}

// ask sends one request and gives the descriptor that came with the answer.
func (d *dialer) ask(verb string, body any) (int, wire.Connected, error) {
	if err := d.conn.Send(1, verb, body); err != nil {
		return -1, wire.Connected{}, err
	}
	m, files, err := d.conn.Recv()
	if err != nil {
		return -1, wire.Connected{}, err
	}
	if m.Verb == wire.VerbDenied {
		var no wire.Denied
		if err := json.Unmarshal(m.Body, &no); err != nil {
			return -1, wire.Connected{}, err
		}
		return -1, wire.Connected{}, refused(no.Reason.Code)
	}
	var yes wire.Connected
	if err := json.Unmarshal(m.Body, &yes); err != nil {
		return -1, wire.Connected{}, err
	}
	if m.Verb != wire.VerbConnected || len(files) != 1 {
		return -1, wire.Connected{}, fmt.Errorf("dialer answered %q with %d descriptors", m.Verb, len(files))
	}
	defer files[0].Close()
	fd, err := dup(files[0])
	return fd, yes, err
}

func dup(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var derr error
	err = raw.Control(func(n uintptr) { fd, derr = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, derr)
}

// socket asks for a fresh TCP socket that the dialer made.
func (d *dialer) socket() (int, int, error) {
	fd, c, err := d.ask(wire.VerbSocket, wire.Connected{Family: 4})
	if err != nil {
		return -1, 0, fmt.Errorf("ask the dialer for a socket: %w", err)
	}
	return fd, c.Family, nil
}

// dial asks for a connection to "name:port".
func (d *dialer) dial(name string) (int, wire.Connected, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return -1, wire.Connected{}, err
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return -1, wire.Connected{}, err
	}
	return d.ask(wire.VerbDial, wire.DialRequest{Host: host, Port: uint16(p)})
}

// dialerDial asks the dialer for names that are not listed.
func dialerDial(t *trial) error {
	d, err := openDialer(t.Dialer)
	if err != nil {
		return fmt.Errorf("dialer %s: %w", t.Dialer, err)
	}
	defer d.conn.Close()
	for _, name := range t.Names {
		fd, where, err := d.dial(name)
		var r refused
		if err != nil && !errors.As(err, &r) {
			return err
		}
		if t.step("dial "+name, err) {
			t.saw("the dialer connected to %s", where.Address)
			return unix.Close(fd)
		}
	}
	return nil
}

// dialerAim takes a socket that the dialer made and aims it itself: as it came,
// and, if the request names a listed destination that answers, one that was
// connected to it, after disconnecting.
func dialerAim(t *trial) error {
	return t.withDialer(func(d *dialer) error {
		for _, a := range t.Addresses {
			to, err := sockaddr(a)
			if err != nil {
				return err
			}
			fd, family, err := d.socket()
			var no refused
			switch {
			case errors.As(err, &no):
				t.step("ask the dialer for a socket", no)
			case err != nil:
				return err
			case t.aim("fresh", fd, fit(to, family), a):
				return nil
			}
			if len(t.Names) == 0 {
				continue
			}
			fd, where, err := d.dial(t.Names[0])
			if err != nil {
				continue // the far side is down: that is not what is tried here
			}
			if !inet(fd) {
				t.step("aim what came for "+t.Names[0]+": one end of a pair of unix sockets", refused(deny.RelayedOnly))
				_ = unix.Close(fd)
				continue
			}
			family = 4
			if where.Address.Addr().Is6() {
				family = 6
			}
			disconnect(fd)
			if t.aim("connected and disconnected", fd, fit(to, family), a) {
				return nil
			}
		}
		return nil
	})
}

// aim connects a passed socket, and closes it.
func (t *trial) aim(how string, fd int, to unix.Sockaddr, address string) bool {
	defer unix.Close(fd)
	if !t.step(how+" passed socket to "+address, connectWithin(fd, to)) {
		return false
	}
	t.saw("a passed socket reached %s", address)
	return true
}

// inet says whether a descriptor is a socket of the internet's families.
func inet(fd int) bool {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err != nil || family != unix.AF_UNIX
}

// dialerMark marks a passed socket, by which it might slip past a rule.
func dialerMark(t *trial) error {
	return t.withDialer(func(d *dialer) error {
		fd, _, err := d.socket()
		if err != nil {
			return t.orRefused(err)
		}
		defer unix.Close(fd)
		if t.step("SO_MARK on a passed socket", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 5)) {
			t.saw("marked a passed socket")
		}
		return nil
	})
}

// dialerListen listens on one passed socket in the host's network and connects
// to it with another: two captured gateways could talk like that.
func dialerListen(t *trial) error {
	return t.withDialer(func(d *dialer) error {
		server, family, err := d.socket()
		if err != nil {
			return t.orRefused(err)
		}
		defer unix.Close(server)
		client, _, err := d.socket()
		if err != nil {
			return err
		}
		defer unix.Close(client)
		loopback := fit(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, family)
		if err := unix.Bind(server, loopback); err != nil {
			t.step("bind a passed socket", err)
			return nil
		}
		if err := unix.Listen(server, 1); err != nil {
			t.step("listen on a passed socket", err)
			return nil
		}
		at, err := unix.Getsockname(server)
		if err != nil {
			return fmt.Errorf("getsockname: %w", err)
		}
		if t.step("connect to a passed socket that listens", connectWithin(client, at)) {
			t.saw("two passed sockets are connected")
		}
		return nil
	})
}

// orRefused takes the dialer's own refusal to give a socket as the answer.
func (t *trial) orRefused(err error) error {
	var no refused
	if !errors.As(err, &no) {
		return err
	}
	t.step("ask the dialer for a socket", no)
	return nil
}

func (t *trial) withDialer(do func(*dialer) error) error {
	d, err := openDialer(t.Dialer)
	if err != nil {
		return fmt.Errorf("dialer %s: %w", t.Dialer, err)
	}
	defer d.conn.Close()
	return do(d)
}

// disconnect dissolves a socket's association (connect(2), AF_UNSPEC).
func disconnect(fd int) {
	var unspec [16]byte
	_, _, _ = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), addressOf(&unspec), 16) // the attempt that follows tells
}

func sockaddr(s string) (unix.Sockaddr, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, err
	}
	if a.Addr().Unmap().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}, nil
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, nil
}

// fit maps an IPv4 address for a socket of IPv6.
func fit(a unix.Sockaddr, family int) unix.Sockaddr {
	if v4, ok := a.(*unix.SockaddrInet4); ok && family == 6 {
		return &unix.SockaddrInet6{Port: v4.Port, Addr: netip.AddrFrom4(v4.Addr).As16()}
	}
	return a
}

// connectWithin connects and waits at most patience.
func connectWithin(fd int, to unix.Sockaddr) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	err := unix.Connect(fd, to)
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}} // #nosec G115 -- a descriptor
	for {
		n, err := unix.Poll(poll, int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.ETIMEDOUT
		}
		break
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if code != 0 {
		return syscall.Errno(code)
	}
	return nil
}
