package routes

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Attributes and actions of rules (linux/fib_rules.h).
const (
	ruleDst, ruleIif, rulePriority, ruleMark, ruleTable = 1, 3, 6, 10, 15
	ruleMask, ruleOif, ruleL3, ruleUIDs                 = 16, 17, 19, 20
	ruleProto, ruleDport                                = 22, 24

	ruleToTable = 1 // FR_ACT_TO_TBL
	ruleInvert  = 2 // FIB_RULE_INVERT
)

// rule is one line of `ip rule`.
type rule struct {
	family   uint8
	priority uint32
	action   uint8
	invert   bool
	table    uint32

	dst      netip.Prefix
	iif, oif string
	l3       bool
	hasMark  bool
	mark     uint32
	mask     uint32
	uids     *[2]uint32
	proto    uint8
	ports    *[2]uint16
}

func (r rule) String() string {
	name := "ip rule"
	if r.family == unix.AF_INET6 {
		name = "ip -6 rule"
	}
	return fmt.Sprintf("%s %d (table %d)", name, r.priority, r.table)
}

func parseRule(body []byte) (rule, error) {
	const head = 12 // struct fib_rule_hdr
	if len(body) < head {
		return rule{}, errShort
	}
	r := rule{family: body[0], table: uint32(body[4]), action: body[7], mask: 0xffffffff}
	r.invert = binary.NativeEndian.Uint32(body[8:])&ruleInvert != 0
	bits := body[1]
	var err error
	if r.dst, err = prefix(r.family, nil, 0); err != nil {
		return r, err
	}
	err = attributes(body, head, func(kind uint16, v []byte) (err error) {
		switch kind {
		case ruleDst:
			r.dst, err = prefix(r.family, v, bits)
		case ruleIif:
			r.iif = text(v)
		case ruleOif:
			r.oif = text(v)
		case rulePriority:
			r.priority, err = number(v)
		case ruleMark:
			r.hasMark = true
			r.mark, err = number(v)
		case ruleMask:
			r.mask, err = number(v)
		case ruleTable:
			r.table, err = number(v)
		case ruleL3:
			r.l3 = len(v) == 1 && v[0] != 0
		case ruleUIDs:
			if len(v) != 8 {
				return errShort
			}
			r.uids = &[2]uint32{binary.NativeEndian.Uint32(v), binary.NativeEndian.Uint32(v[4:])}
		case ruleProto:
			if len(v) != 1 {
				return errShort
			}
			r.proto = v[0]
		case ruleDport:
			if len(v) != 4 {
				return errShort
			}
			r.ports = &[2]uint16{binary.NativeEndian.Uint16(v), binary.NativeEndian.Uint16(v[2:])}
		}
		return err
	})
	return r, err
}

// mayApply says whether a rule could send a TCP packet of a local socket of uid,
// without a mark, by its table. What is not compared here may apply.
func (r rule) mayApply(uid uint32, to netip.AddrPort) bool {
	if r.action != ruleToTable || (r.family == unix.AF_INET) != to.Addr().Is4() {
		return false
	}
	if r.invert {
		return true
	}
	switch {
	case !r.dst.Contains(to.Addr()),
		r.iif != "" && r.iif != "lo",
		r.oif != "", r.l3, // the socket is bound to no interface
		r.hasMark && r.mark&r.mask != 0,
		r.uids != nil && (uid < r.uids[0] || uid > r.uids[1]),
		r.proto != 0 && r.proto != unix.IPPROTO_TCP,
		r.ports != nil && (to.Port() < r.ports[0] || to.Port() > r.ports[1]):
		return false
	}
	return true
}

// names joins what was found, each once.
func names(list []string) string { return strings.Join(list, ", ") }
