package routes

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// route is one line of `ip route`.
type route struct {
	family     uint8
	kind       uint8 // RTN_
	table      uint32
	dst        netip.Prefix
	interfaces []int
	encap      bool // by a tunnel of its own (lwtunnel), which can be a BPF program
}

func (r route) String() string {
	return fmt.Sprintf("route to %s in table %d", r.dst, r.table)
}

func parseRoute(body []byte) (route, error) {
	const head = unix.SizeofRtMsg
	if len(body) < head {
		return route{}, errShort
	}
	r := route{family: body[0], table: uint32(body[4]), kind: body[7]}
	bits := body[1]
	var err error
	if r.dst, err = prefix(r.family, nil, 0); err != nil {
		return r, err
	}
	err = attributes(body, head, func(kind uint16, v []byte) (err error) {
		switch kind {
		case unix.RTA_DST:
			r.dst, err = prefix(r.family, v, bits)
		case unix.RTA_OIF:
			var n uint32
			n, err = number(v)
			r.interfaces = append(r.interfaces, int(n))
		case unix.RTA_TABLE:
			r.table, err = number(v)
		case unix.RTA_ENCAP_TYPE:
			r.encap = true
		case unix.RTA_MULTIPATH:
			err = r.hops(v)
		}
		return err
	})
	return r, err
}

// hops reads the several ways of one route (struct rtnexthop, rtnetlink(7)).
func (r *route) hops(b []byte) error {
	const head = unix.SizeofRtNexthop
	for len(b) > 0 {
		if len(b) < head {
			return errShort
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < head || n > len(b) {
			return errShort
		}
		r.interfaces = append(r.interfaces, int(binary.NativeEndian.Uint32(b[4:])))
		if err := attributes(b[:n], head, func(kind uint16, _ []byte) error {
			r.encap = r.encap || kind == unix.RTA_ENCAP_TYPE
			return nil
		}); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// odd says what a route does that its address does not say; empty: nothing.
func (r route) odd() string {
	switch {
	case r.encap:
		return r.String() + " wraps packets by a program or label of its own"
	case r.kind != unix.RTN_LOCAL:
		return ""
	case r.table != unix.RT_TABLE_LOCAL:
		return r.String() + " delivers to this host itself"
	case !r.dst.IsSingleIP() && !r.dst.Addr().IsLoopback():
		return r.String() + " delivers a whole range to this host itself"
	}
	return ""
}
