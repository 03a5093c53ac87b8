package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Host is what was read of this network namespace.
type Host struct {
	rules  []rule
	routes []route
	links  []link
	// met is what lies on an interface, by its index; asked once.
	met map[int]met
	// policies is how many IPsec policies judge what leaves.
	policies int
	conn     *netlink.Conn
}

type met struct {
	found []string
	err   error
}

// Read reads rules, routes and interfaces. Close the host when it was asked
// everything.
func Read() (*Host, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("routes: netlink: %w", err)
	}
	// Filters of the kernel by table and family are off: all of them are wanted.
	h := &Host{conn: c, met: map[int]met{}}
	if err := h.read(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return h, nil
}

// Close lets go of the kernel.
func (h *Host) Close() error { return h.conn.Close() }

func (h *Host) read() error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := dump(h.conn, unix.RTM_GETRULE, append([]byte{family}, make([]byte, 11)...))
		if err != nil && (family == unix.AF_INET || !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP)) {
			return fmt.Errorf("routes: rules: %w", err)
		}
		for _, body := range list {
			r, err := parseRule(body)
			if err != nil {
				return err
			}
			if r.family == family {
				h.rules = append(h.rules, r)
			}
		}
		list, err = dump(h.conn, unix.RTM_GETROUTE, append([]byte{family}, make([]byte, unix.SizeofRtMsg-1)...))
		if err != nil {
			return fmt.Errorf("routes: %w", err)
		}
		for _, body := range list {
			r, err := parseRoute(body)
			if err != nil {
				return err
			}
			if r.family == family {
				h.routes = append(h.routes, r)
			}
		}
	}
	list, err := dump(h.conn, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg))
	if err != nil {
		return fmt.Errorf("routes: interfaces: %w", err)
	}
	for _, body := range list {
		l, err := parseLink(body)
		if err != nil {
			return err
		}
		h.links = append(h.links, l)
	}
	h.policies, err = policies()
	return err
}

// policies counts the IPsec policies of local packets: one can wrap a packet into
// another with another address.
func policies() (int, error) {
	c, err := netlink.Dial(unix.NETLINK_XFRM, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return 0, nil // this kernel has none
	}
	if err != nil {
		return 0, fmt.Errorf("routes: IPsec: %w", err)
	}
	defer func() { _ = c.Close() }()
	const getPolicy = 0x15 // XFRM_MSG_GETPOLICY
	const dirOffset = 160  // of dir in struct xfrm_userpolicy_info
	list, err := dump(c, getPolicy, nil)
	if err != nil {
		return 0, fmt.Errorf("routes: IPsec policies: %w", err)
	}
	n := 0
	for _, body := range list {
		if len(body) <= dirOffset {
			return 0, errShort
		}
		if body[dirOffset] == 1 { // XFRM_POLICY_OUT
			n++
		}
	}
	return n, nil
}

// Way is how packets to one address may leave.
type Way struct {
	Interfaces []int
	Odd        []string // what a route or rule does that the address does not say
}

// Way gives every route that a TCP packet of a socket of uid may take to an address.
func (h *Host) Way(uid uint32, to netip.AddrPort) Way {
	var w Way
	tables := map[uint32]bool{}
	for _, r := range h.rules {
		if r.mayApply(uid, to) {
			tables[r.table] = true
		}
	}
	for _, r := range h.routes {
		if !tables[r.table] || (r.family == unix.AF_INET) != to.Addr().Is4() || !r.dst.Contains(to.Addr()) {
			continue
		}
		if why := r.odd(); why != "" {
			w.Odd = append(w.Odd, why)
		}
		w.Interfaces = append(w.Interfaces, r.interfaces...)
	}
	slices.Sort(w.Interfaces)
	w.Interfaces = slices.Compact(w.Interfaces)
	return w
}

// Between lists what could change, copy or send elsewhere what leaves by
// interfaces or those below them: filters of traffic control, BPF and XDP programs,
// IPsec policies.
func (h *Host) Between(interfaces []int) ([]string, error) {
	var out []string
	if h.policies > 0 && len(interfaces) > 0 {
		out = append(out, fmt.Sprintf("%d IPsec policies judge what leaves (ip xfrm policy)", h.policies))
	}
	for _, i := range h.below(interfaces) {
		m, ok := h.met[i]
		if !ok {
			m.found, m.err = h.at(i)
			h.met[i] = m
		}
		if m.err != nil {
			return nil, m.err
		}
		out = append(out, m.found...)
	}
	return out, nil
}

// Names names interfaces and those below them.
func (h *Host) Names(interfaces []int) string {
	var out []string
	for _, i := range h.below(interfaces) {
		if l, ok := h.link(i); ok {
			out = append(out, l.name)
		}
	}
	return names(out)
}

func (h *Host) link(index int) (link, bool) {
	i := slices.IndexFunc(h.links, func(l link) bool { return l.index == index })
	if i < 0 {
		return link{}, false
	}
	return h.links[i], true
}

// below adds what lies under interfaces: the device of a VLAN, the ports of a bond
// or bridge.
func (h *Host) below(interfaces []int) []int {
	out := slices.Clone(interfaces)
	for i := 0; i < len(out); i++ {
		for _, l := range h.links {
			under := l.master == out[i]
			if l.index == out[i] {
				under, l.index = l.below > 0, l.below
			}
			if under && !slices.Contains(out, l.index) {
				out = append(out, l.index)
			}
		}
	}
	return out
}

// at asks the kernel what lies on one interface.
func (h *Host) at(index int) ([]string, error) {
	l, ok := h.link(index)
	if !ok {
		return nil, fmt.Errorf("routes: interface %d was not there a moment ago: try again", index)
	}
	out, err := controls(h.conn, l)
	if err != nil {
		return nil, err
	}
	more, err := programs(l)
	if err != nil {
		return nil, err
	}
	if l.xdp {
		out = append(out, "interface "+l.name+" has an XDP program")
	}
	return append(out, more...), nil
}
