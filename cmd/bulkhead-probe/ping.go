package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Sockets that send echoes and nothing else, without any privilege for the groups
// of net.ipv4.ping_group_range (icmp(7)).
var pings = []struct {
	name             string
	family, protocol int
	echo, reply      byte
}{
	{"ICMP", unix.AF_INET, unix.IPPROTO_ICMP, 8, 0},          // RFC 792
	{"ICMPv6", unix.AF_INET6, unix.IPPROTO_ICMPV6, 128, 129}, // RFC 4443, 4
}

// pingSockets opens one of each kind.
func pingSockets(t *trial) error {
	for _, p := range pings {
		fd, err := unix.Socket(p.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, p.protocol)
		if t.step("socket(SOCK_DGRAM, "+p.name+")", err) {
			t.saw("has a socket for %s", p.name)
			return unix.Close(fd)
		}
	}
	return nil
}

// ping sends an echo to each address, and waits a moment for the reply.
func ping(t *trial) error {
	for _, a := range t.Addresses {
		to, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		if t.step("ping "+a, pingOne(to)) {
			t.saw("%s answered", a)
			return nil
		}
	}
	return nil
}

func pingOne(to netip.Addr) error {
	p := pings[1]
	var address unix.Sockaddr = &unix.SockaddrInet6{Addr: to.As16()}
	if to.Is4() {
		p, address = pings[0], &unix.SockaddrInet4{Addr: to.As4()}
	}
	fd, err := unix.Socket(p.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, p.protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return err
	}
	// Connected, so that an error which comes back is told.
	if err := unix.Connect(fd, address); err != nil {
		return err
	}
	echo := append(make([]byte, 8), "bulkhead-probe"...) // the kernel fills in identifier and checksum
	echo[0] = p.echo
	binary.BigEndian.PutUint16(echo[6:], 1)
	if _, err := unix.Write(fd, echo); err != nil {
		return err
	}
	answer := make([]byte, 512)
	n, err := unix.Read(fd, answer)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return unix.ETIMEDOUT // silence is no refusal
	case err != nil:
		return err
	case n < 8 || answer[0] != p.reply:
		return fmt.Errorf("%s: no reply to an echo: type %d", to, answer[0])
	}
	return nil
}
