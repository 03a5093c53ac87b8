package routes

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Attributes that x/sys does not name (linux/if_link.h).
const (
	linkXDP, linkNamespace = 43, 37 // IFLA_XDP, IFLA_LINK_NETNSID
	xdpAttached            = 2      // IFLA_XDP_ATTACHED
)

// link is one interface.
type link struct {
	index, below, master int // below: in this namespace
	name                 string
	xdp                  bool
}

func parseLink(body []byte) (link, error) {
	const head = unix.SizeofIfInfomsg
	if len(body) < head {
		return link{}, errShort
	}
	l := link{index: int(int32(binary.NativeEndian.Uint32(body[4:])))} // #nosec G115 -- the kernel's own int
	foreign := false
	err := attributes(body, head, func(kind uint16, v []byte) error {
		var n uint32
		var err error
		switch kind {
		case unix.IFLA_IFNAME:
			l.name = text(v)
		case unix.IFLA_LINK:
			n, err = number(v)
			l.below = int(n)
		case unix.IFLA_MASTER:
			n, err = number(v)
			l.master = int(n)
		case linkNamespace:
			foreign = true
		case linkXDP:
			err = attributes(v, 0, func(kind uint16, v []byte) error {
				l.xdp = l.xdp || kind == xdpAttached && len(v) == 1 && v[0] != 0
				return nil
			})
		}
		return err
	})
	if foreign {
		l.below = 0
	}
	return l, err
}

// Parents under which filters judge what leaves (linux/pkt_sched.h).
const (
	clsactEgress = 0xfffffff3 // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)
	ingressMajor = 0xffff0000 // the handle of ingress and clsact
)

// tcm is struct tcmsg with its kind.
type tcm struct {
	handle, parent uint32
	kind           string
}

func parseTCM(body []byte) (tcm, int, error) {
	const head = 20
	if len(body) < head {
		return tcm{}, 0, errShort
	}
	t := tcm{handle: binary.NativeEndian.Uint32(body[8:]), parent: binary.NativeEndian.Uint32(body[12:])}
	index := int(int32(binary.NativeEndian.Uint32(body[4:]))) // #nosec G115 -- the kernel's own int
	return t, index, attributes(body, head, func(kind uint16, v []byte) error {
		if kind == 1 { // TCA_KIND
			t.kind = text(v)
		}
		return nil
	})
}

func tcmHead(index int, parent uint32) []byte {
	b := make([]byte, 20)
	binary.NativeEndian.PutUint32(b[4:], uint32(index)) // #nosec G115 -- an index of the kernel's
	binary.NativeEndian.PutUint32(b[12:], parent)
	return b
}

// controls lists the filters of traffic control that what leaves by an interface
// can meet: at the egress side of clsact, and at each queueing discipline and class.
func controls(c *netlink.Conn, l link) ([]string, error) {
	queues, err := dump(c, unix.RTM_GETQDISC, tcmHead(l.index, 0))
	if err != nil {
		return nil, fmt.Errorf("routes: queueing disciplines of %s: %w", l.name, err)
	}
	classes, err := dump(c, unix.RTM_GETTCLASS, tcmHead(l.index, 0))
	if err != nil {
		return nil, fmt.Errorf("routes: classes of %s: %w", l.name, err)
	}
	parents := []uint32{}
	for i, body := range append(queues, classes...) {
		t, index, err := parseTCM(body)
		if err != nil {
			return nil, err
		}
		switch {
		case index != l.index:
		case i < len(queues) && t.handle == ingressMajor:
			if t.kind == "clsact" {
				parents = append(parents, clsactEgress)
			}
		case t.handle != 0:
			parents = append(parents, t.handle)
		}
	}
	var out []string
	for _, p := range parents {
		list, err := dump(c, unix.RTM_GETTFILTER, tcmHead(l.index, p))
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
			continue // one that takes no filters
		}
		if err != nil {
			return nil, fmt.Errorf("routes: filters of %s: %w", l.name, err)
		}
		for _, body := range list {
			t, _, err := parseTCM(body)
			if err != nil {
				return nil, err
			}
			out = append(out, fmt.Sprintf("interface %s has a filter %s of traffic control", l.name, t.kind))
			break
		}
	}
	return out, nil
}
