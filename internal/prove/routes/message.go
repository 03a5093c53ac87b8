package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// typeMask takes the flags from an attribute's type (NLA_TYPE_MASK).
const typeMask = 0x3fff

// errShort says that the kernel answered less than its own headers.
var errShort = errors.New("routes: a message of the kernel is too short")

// dump asks for all objects of a kind and gives each message's body.
func dump(c *netlink.Conn, kind uint16, head []byte) ([][]byte, error) {
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.Dump},
		Data:   head,
	})
	if err != nil {
		return nil, err
	}
	out := make([][]byte, 0, len(msgs))
	for _, m := range msgs {
		if m.Header.Type != netlink.Done {
			out = append(out, m.Data)
		}
	}
	return out, nil
}

// attributes calls do for each attribute behind a header of n bytes.
func attributes(body []byte, n int, do func(kind uint16, value []byte) error) error {
	if len(body) < n {
		return errShort
	}
	list, err := netlink.UnmarshalAttributes(body[n:])
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	for _, a := range list {
		if err := do(a.Type&typeMask, a.Data); err != nil {
			return err
		}
	}
	return nil
}

func number(b []byte) (uint32, error) {
	if len(b) != 4 {
		return 0, errShort
	}
	return binary.NativeEndian.Uint32(b), nil
}

// prefix reads an address of a family with its length in bits. Zero bits are the
// whole family.
func prefix(family uint8, b []byte, bits uint8) (netip.Prefix, error) {
	if bits == 0 && len(b) == 0 {
		if family == unix.AF_INET6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0), nil
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), nil
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.Prefix{}, errShort
	}
	p := netip.PrefixFrom(a, int(bits))
	if !p.IsValid() {
		return p, fmt.Errorf("routes: %d bits of %s", bits, a)
	}
	return p.Masked(), nil
}

// text reads a string that may end in a NUL.
func text(b []byte) string { return unix.ByteSliceToString(b) }
