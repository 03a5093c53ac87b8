package cell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// makeNetwork gives the calling thread (locked, and thrown away afterwards) a
// network namespace of its own: loopback and nothing else. It belongs to the
// user namespace of the caller, the initial one, so nothing inside a
// container can change an address, a route or a setting of it.
func makeNetwork(n engine.Network) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cell: network namespace: %w", err)
	}
	return SetUpLoopback(n)
}

// SetUpLoopback brings lo up in the calling thread's network namespace and gives it
// the addresses and settings of n.
func SetUpLoopback(n engine.Network) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("cell: loopback: netlink: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// struct ifinfomsg (rtnetlink(7)); lo is index 1 in every namespace.
	up := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(up[4:], 1)
	binary.NativeEndian.PutUint32(up[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(up[12:], unix.IFF_UP)
	if err := request(fd, unix.RTM_NEWLINK, 0, up); err != nil {
		return fmt.Errorf("cell: bring lo up: %w", err)
	}
	for _, p := range n.Loopback {
		if err := addPrefix(fd, p); err != nil {
			return fmt.Errorf("cell: address %s on lo: %w", p, err)
		}
	}
	if n.UnprivilegedPorts {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0o600); err != nil {
			return fmt.Errorf("cell: let every id bind low ports: %w", err)
		}
	}
	return nil
}

// addPrefix adds an address to lo. For IPv4 the kernel makes the whole prefix
// local by itself on a loopback interface; for IPv6 it needs a local route.
func addPrefix(fd int, p netip.Prefix) error {
	if !p.IsValid() {
		return errors.New("not a prefix")
	}
	family, addr := byte(unix.AF_INET), p.Addr().AsSlice()
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	// struct ifaddrmsg: family, prefix length, flags, scope, index.
	msg := []byte{family, byte(p.Bits()), unix.IFA_F_NODAD, unix.RT_SCOPE_HOST, 0, 0, 0, 0} // #nosec G115 -- 0 to 128
	binary.NativeEndian.PutUint32(msg[4:], 1)
	msg = append(msg, attribute(unix.IFA_LOCAL, addr)...)
	msg = append(msg, attribute(unix.IFA_ADDRESS, addr)...)
	if err := request(fd, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, msg); err != nil {
		return err
	}
	if family == unix.AF_INET || p.IsSingleIP() {
		return nil
	}
	// struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
	route := []byte{family, byte(p.Bits()), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0} // #nosec G115 -- 0 to 128
	index := make([]byte, 4)
	binary.NativeEndian.PutUint32(index, 1)
	route = append(route, attribute(unix.RTA_DST, p.Masked().Addr().AsSlice())...)
	route = append(route, attribute(unix.RTA_OIF, index)...)
	return request(fd, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, route)
}

// attribute encodes struct rtattr, padded to four bytes.
func attribute(kind uint16, value []byte) []byte {
	b := make([]byte, (4+len(value)+3)&^3)
	binary.NativeEndian.PutUint16(b, uint16(4+len(value))) // #nosec G115 -- at most 20
	binary.NativeEndian.PutUint16(b[2:], kind)
	copy(b[4:], value)
	return b
}

// request sends one rtnetlink message and waits for the kernel's answer.
func request(fd int, kind, flags uint16, body []byte) error {
	msg := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(msg, uint32(unix.SizeofNlMsghdr+len(body))) // #nosec G115 -- small
	binary.NativeEndian.PutUint16(msg[4:], kind)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	if err := unix.Sendto(fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is no acknowledgement")
	}
	if e := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); e != 0 { // #nosec G115 -- a negative errno
		return unix.Errno(-e)
	}
	return nil
}
