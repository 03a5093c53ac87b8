package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// nfgenLen is the length of struct nfgenmsg (linux/netfilter/nfnetlink.h).
const nfgenLen = 4

var families = map[byte]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// Tables dumps the tables (NFT_MSG_GETTABLE). It is written by hand because
// the operator's program must not link a library that can write rules.
func (system) Tables() ([]Table, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	// The kernel answers at once or not at all.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		return nil, err
	}
	ask := make([]byte, unix.NLMSG_HDRLEN+nfgenLen)
	binary.NativeEndian.PutUint32(ask, uint32(len(ask))) // #nosec G115 -- 20
	binary.NativeEndian.PutUint16(ask[4:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE)
	binary.NativeEndian.PutUint16(ask[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []Table
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return nil, err
		}
		tables, done, err := parseTables(buf[:n])
		if all = append(all, tables...); err != nil || done {
			return all, err
		}
	}
}

var errTorn = errors.New("the kernel's list of tables is torn")

// parseTables reads one datagram of the dump (netlink(7)).
func parseTables(b []byte) (all []Table, done bool, err error) {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return all, true, errTorn
		}
		body := b[unix.NLMSG_HDRLEN:size]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return all, true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return all, true, errTorn
			}
			if e := int32(binary.NativeEndian.Uint32(body)); e < 0 { // #nosec G115 -- a negative errno by contract
				return all, true, unix.Errno(-e)
			}
			return all, true, nil
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE:
			t, err := parseTable(body)
			if err != nil {
				return all, true, err
			}
			all = append(all, t)
		}
		b = b[min(align(size), len(b)):]
	}
	if len(b) > 0 {
		return all, true, errTorn
	}
	return all, false, nil
}

func parseTable(body []byte) (Table, error) {
	if len(body) < nfgenLen {
		return Table{}, errTorn
	}
	t := Table{Family: families[body[0]]}
	if t.Family == "" {
		t.Family = fmt.Sprintf("family-%d", body[0])
	}
	for a := body[nfgenLen:]; len(a) >= 4; {
		size := int(binary.NativeEndian.Uint16(a))
		if size < 4 || size > len(a) {
			return Table{}, errTorn
		}
		if binary.NativeEndian.Uint16(a[2:])&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == unix.NFTA_TABLE_NAME {
			name := a[4:size]
			if n := len(name); n > 0 && name[n-1] == 0 {
				name = name[:n-1]
			}
			t.Name = string(name)
		}
		a = a[min(align(size), len(a)):]
	}
	if t.Name == "" {
		return Table{}, errTorn
	}
	return t, nil
}

// align is NLMSG_ALIGN.
func align(n int) int { return (n + 3) &^ 3 }
