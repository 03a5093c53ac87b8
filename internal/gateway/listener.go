package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"bulkhead/internal/socket"
	"bulkhead/internal/wire"
)

// target is what a listener is for; an empty host is the HTTP proxy.
type target struct {
	host string
	port uint16
}

// target reads "name:port" and takes only what is listed: a listener for
// anything else could never serve anybody, so it is a mistake.
func (s *Server) target(text string) (target, error) {
	if text == "" {
		return target{}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return target{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return target{}, fmt.Errorf("port %q is not a number below 65536", port)
	}
	if host == wire.OwnName && n == wire.OwnPort {
		return target{}, nil // what the proxy does with requests to that name
	}
	if _, reason := s.grants.policy().Check(host, uint16(n)); reason != nil {
		return target{}, reason
	}
	return target{host, uint16(n)}, nil
}

// listener takes f when the kernel says that it is a listening TCP stream
// socket. The listener has a descriptor of its own.
func listener(f *os.File) (net.Listener, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		for _, want := range []struct {
			name   string
			option int
			values []int
		}{
			{"domain", unix.SO_DOMAIN, []int{unix.AF_INET, unix.AF_INET6}},
			{"type", unix.SO_TYPE, []int{unix.SOCK_STREAM}},
			{"protocol", unix.SO_PROTOCOL, []int{unix.IPPROTO_TCP, unix.IPPROTO_MPTCP}}, // Go listens with the latter
			{"accepts connections", unix.SO_ACCEPTCONN, []int{1}},
		} {
			got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, want.option) // #nosec G115 -- a descriptor
			if err != nil {
				inner = fmt.Errorf("it is not a socket: %w", err)
				return
			}
			ok := false
			for _, v := range want.values {
				ok = ok || got == v
			}
			if !ok {
				inner = fmt.Errorf("it is not a listening TCP socket: its %s is %d", want.name, got)
				return
			}
		}
	})
	if err = errors.Join(err, inner); err != nil {
		return nil, err
	}
	return socket.Listen(f)
}
