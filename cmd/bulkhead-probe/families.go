package main

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// familyKinds are attempts to get a socket that is not one of TCP, UDP or a
// unix socket, and to send by other protocols.
func familyKinds() map[string]kind {
	return map[string]kind{
		"socket.raw": {do: calls(
			called{"socket(AF_INET, SOCK_RAW, ICMP)", opening(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), nil},
			called{"socket(AF_INET6, SOCK_RAW, ICMPv6)", opening(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6), nil},
			called{"socket(AF_INET, SOCK_RAW, TCP)", opening(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP), nil},
			called{"socket(AF_INET, SOCK_RAW, RAW)", opening(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW), nil},
		)},
		// The second is the first by its old name (net/socket.c, __sock_create).
		"socket.packet": {do: calls(
			called{"socket(AF_PACKET)", opening(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0), nil},
			called{"socket(AF_INET, SOCK_PACKET)", opening(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_PACKET, 0), nil},
		)},
		"socket.ping":      {do: pingSockets},
		"net.ping":         {do: ping},
		"socket.netlink":   {do: netlinkSockets},
		"socket.alg":       {do: calls(called{"socket(AF_ALG)", opening(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0), nil})},
		"socket.families":  {do: oddFamilies},
		"socket.mptcp":     {do: calls(called{"socket(AF_INET, SOCK_STREAM, MPTCP)", opening(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP), nil})},
		"socket.protocols": {do: oddProtocols},
		"net.udp":          {do: connectUDP},
		"net.route":        {do: changeLink},
	}
}

// netlinkSockets asks for netlink protocols that an agent has no use for.
func netlinkSockets(t *trial) error {
	for _, p := range []struct {
		name string
		id   int
	}{
		{"SOCK_DIAG", unix.NETLINK_SOCK_DIAG},
		{"NETFILTER", unix.NETLINK_NETFILTER},
		{"XFRM", unix.NETLINK_XFRM},
		{"AUDIT", unix.NETLINK_AUDIT},
		{"KOBJECT_UEVENT", unix.NETLINK_KOBJECT_UEVENT},
		{"GENERIC", unix.NETLINK_GENERIC},
	} {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, p.id)
		if t.step("socket(NETLINK_"+p.name+")", err) {
			t.saw("speaks netlink's %s", p.name)
			return unix.Close(fd)
		}
	}
	return nil
}

// oddFamilies asks for families that few programs and many exploits use.
func oddFamilies(t *trial) error {
	for _, f := range []struct {
		name         string
		family, kind int
	}{
		{"KEY", unix.AF_KEY, unix.SOCK_RAW},
		{"XDP", unix.AF_XDP, unix.SOCK_RAW},
		{"TIPC", unix.AF_TIPC, unix.SOCK_RDM},
		{"RDS", unix.AF_RDS, unix.SOCK_SEQPACKET},
		{"CAN", unix.AF_CAN, unix.SOCK_RAW},
		{"BLUETOOTH", unix.AF_BLUETOOTH, unix.SOCK_RAW},
		{"NFC", unix.AF_NFC, unix.SOCK_RAW},
		{"PPPOX", unix.AF_PPPOX, unix.SOCK_DGRAM},
		{"QIPCRTR", unix.AF_QIPCRTR, unix.SOCK_DGRAM},
		{"SMC", unix.AF_SMC, unix.SOCK_STREAM},
		{"X25", unix.AF_X25, unix.SOCK_SEQPACKET},
		{"IEEE802154", unix.AF_IEEE802154, unix.SOCK_DGRAM},
	} {
		fd, err := unix.Socket(f.family, f.kind|unix.SOCK_CLOEXEC, 0)
		if t.step("socket(AF_"+f.name+")", err) {
			t.saw("has a socket of family %s", f.name)
			return unix.Close(fd)
		}
	}
	return nil
}

// oddProtocols asks for transports of IP that rules for TCP do not judge.
func oddProtocols(t *trial) error {
	filtered := false // a refusal that no kernel gives who lacks the protocol
	for _, p := range []struct {
		name           string
		kind, protocol int
	}{
		// Of no protocol: the type's own is meant, SCTP's and DCCP's (CVE-2017-6074).
		{"SOCK_SEQPACKET", unix.SOCK_SEQPACKET, 0},
		{"UDPLITE", unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE},
		{"SCTP", unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		{"DCCP", unix.SOCK_DCCP, unix.IPPROTO_DCCP},
		{"SOCK_DCCP", unix.SOCK_DCCP, 0},
	} {
		fd, err := unix.Socket(unix.AF_INET, p.kind|unix.SOCK_CLOEXEC, p.protocol)
		if errors.Is(err, unix.ESOCKTNOSUPPORT) && p.kind == unix.SOCK_SEQPACKET {
			continue // no SCTP here, and nobody refused: the next says who is asked
		}
		if t.step("socket("+p.name+")", err) {
			t.saw("speaks %s", p.name)
			return unix.Close(fd)
		}
		filtered = filtered || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS)
		if !filtered && (errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT)) {
			return nil // nobody refuses here: asking for the next would load its module into the host's kernel
		}
	}
	return nil
}

// connectUDP sends a packet to each address and waits a moment for an answer.
func connectUDP(t *trial) error {
	for _, a := range t.Addresses {
		if t.step("udp "+a, ask("udp", a, []byte("bulkhead-probe"))) {
			t.saw("%s answered", a)
			return nil
		}
	}
	return nil
}

// changeLink asks netlink to bring up the loopback interface, which is up: who
// may do that may change addresses and routes.
func changeLink(t *trial) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.step("socket(NETLINK_ROUTE)", err)
		return nil
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return err
	}
	msg := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(msg[0:], uint32(len(msg))) // #nosec G115 -- a few bytes
	binary.NativeEndian.PutUint16(msg[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint32(msg[8:], 1)
	binary.NativeEndian.PutUint32(msg[20:], 1) // the first interface is lo
	binary.NativeEndian.PutUint32(msg[24:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(msg[28:], unix.IFF_UP)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.step("change the loopback interface", err)
		return nil
	}
	err = acknowledged(fd)
	var unclear *netlinkFault
	if errors.As(err, &unclear) {
		return err
	}
	if t.step("change the loopback interface", err) {
		t.saw("may change interfaces")
	}
	return nil
}
