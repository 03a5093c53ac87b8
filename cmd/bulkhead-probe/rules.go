package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// flushRules asks nftables to delete the table of the request (family inet).
// It speaks netlink by itself, so that the probe stays small. The message is a
// batch of one deletion (linux/netfilter/nfnetlink.h, nf_tables.h).
func flushRules(t *trial) error {
	if t.Table == "" {
		return errors.New("the request names no table")
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		t.step("socket(NETLINK_NETFILTER)", err)
		return nil
	}
	defer unix.Close(fd)
	err = deleteTable(fd, t.Table)
	var unclear *netlinkFault
	if errors.As(err, &unclear) {
		return err
	}
	if t.step("delete table inet "+t.Table, err) {
		t.saw("the kernel deleted the table")
	}
	return nil
}

// netlinkFault is an exchange that did not come to an answer.
type netlinkFault struct{ err error }

func (f *netlinkFault) Error() string { return "netlink: " + f.err.Error() }

func deleteTable(fd int, table string) error {
	const inet = 1 // NFPROTO_INET
	begin := nftMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 1, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	name := attribute(unix.NFTA_TABLE_NAME, append([]byte(table), 0))
	remove := nftMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE, unix.NLM_F_ACK, 2, inet, 0, name)
	end := nftMessage(unix.NFNL_MSG_BATCH_END, 0, 3, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	batch := append(append(begin, remove...), end...)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return &netlinkFault{err}
	}
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	return acknowledged(fd)
}

// acknowledged reads netlink's answer to one message.
func acknowledged(fd int) error {
	buf := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return &netlinkFault{err}
	}
	if n < 20 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return &netlinkFault{fmt.Errorf("%d bytes that are no acknowledgement", n)}
	}
	if code := int32(binary.NativeEndian.Uint32(buf[16:])); code != 0 { // #nosec G115 -- a negative errno
		return syscall.Errno(-code)
	}
	return nil
}

// nftMessage lays out nlmsghdr, nfgenmsg and attributes.
func nftMessage(kind, flags int, seq uint32, family byte, resource uint16, attrs []byte) []byte {
	b := make([]byte, 20, 20+len(attrs))
	binary.NativeEndian.PutUint32(b[0:], uint32(20+len(attrs)))            // #nosec G115 -- a few bytes
	binary.NativeEndian.PutUint16(b[4:], uint16(kind))                     // #nosec G115 -- constants
	binary.NativeEndian.PutUint16(b[6:], uint16(flags|unix.NLM_F_REQUEST)) // #nosec G115 -- constants
	binary.NativeEndian.PutUint32(b[8:], seq)
	b[16] = family
	binary.BigEndian.PutUint16(b[18:], resource)
	return append(b, attrs...)
}

func attribute(kind uint16, value []byte) []byte {
	b := make([]byte, 4, 4+len(value)+3)
	binary.NativeEndian.PutUint16(b[0:], uint16(4+len(value))) // #nosec G115 -- a table's name
	binary.NativeEndian.PutUint16(b[2:], kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// addressOf gives a buffer's address for a raw system call.
func addressOf(b *[16]byte) uintptr {
	return uintptr(unsafe.Pointer(b)) // #nosec G103 -- a system call's argument
}
