package packets

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Attributes and values that x/sys does not name (linux/netfilter/nf_tables.h).
const (
	metaSreg        = 3 // NFTA_META_SREG
	verdictRegister = 0 // NFT_REG_VERDICT
	lookupInv       = 1 // NFT_LOOKUP_F_INV
	bitwiseOp       = 6 // NFTA_BITWISE_OP; 0 is mask and xor
)

// harmless expressions change nothing about where a packet goes, and let it on.
var harmless = []string{"counter", "log", "notrack", "last", "dynset", "connlimit-put"}

// conditions look at what a box does not hold.
var conditions = []string{
	"ct", "rt", "fib", "socket", "osf", "numgen", "hash", "limit", "quota", "connlimit", "exthdr", "xfrm", "tunnel", "inner", "match",
}

// expr interprets one expression.
func (j *judge) expr(e Expr, b Box, regs *registers) (result, error) {
	switch e.Name {
	case "meta":
		return j.meta(e, b, regs)
	case "payload":
		return payload(e, b, regs)
	case "cmp":
		data, err := value(e.Attr[unix.NFTA_CMP_DATA])
		if err != nil {
			return result{}, err
		}
		return cmp(b, regs, u32(e.Attr[unix.NFTA_CMP_SREG]), u32(e.Attr[unix.NFTA_CMP_OP]), data)
	case "range":
		from, err := value(e.Attr[unix.NFTA_RANGE_FROM_DATA])
		if err != nil {
			return result{}, err
		}
		to, err := value(e.Attr[unix.NFTA_RANGE_TO_DATA])
		if err != nil {
			return result{}, err
		}
		cells, err := regs.get(u32(e.Attr[unix.NFTA_RANGE_SREG]), len(from))
		if err != nil {
			return result{}, err
		}
		return compare(b, cells, u32(e.Attr[unix.NFTA_RANGE_OP]), from, to), nil
	case "lookup":
		return j.lookup(e, b, regs)
	case "bitwise":
		return goingOn(b), bitwise(e, regs)
	case "byteorder":
		return goingOn(b), byteorder(e, regs)
	case "immediate":
		return immediate(e, b, regs)
	case "reject":
		return result{matched: []match{{b, &Verdict{Code: drop}}}}, nil
	}
	switch {
	case slices.Contains(harmless, e.Name):
		return goingOn(b), nil
	case slices.Contains(conditions, e.Name):
		return j.condition(e, b, regs)
	}
	// Address translation, redirection, duplication, a program, an extension of
	// iptables, or something newer than this text.
	r := either(b)
	r.detour = "the expression " + e.Name
	return r, nil
}

// condition follows both outcomes of what is not known. Those that only load
// make their register unknown; those that write are detours.
func (j *judge) condition(e Expr, b Box, regs *registers) (result, error) {
	switch e.Name {
	case "ct": // NFTA_CT_DREG 1, NFTA_CT_SREG 4
		if _, writes := e.Attr[4]; writes {
			r := goingOn(b)
			r.detour = "a rule that changes connection tracking"
			return r, nil
		}
		return goingOn(b), forget(regs, e.Attr[1])
	case "rt", "socket", "tunnel", "xfrm": // NFTA_*_DREG 1 or 2
		return goingOn(b), forgetAll(regs)
	case "fib", "osf", "numgen", "hash", "inner", "exthdr":
		return goingOn(b), forgetAll(regs)
	}
	return either(b), nil
}

func forget(regs *registers, reg []byte) error {
	return regs.set(u32(reg), make([]cell, 16))
}

func forgetAll(regs *registers) error {
	*regs = registers{}
	return nil
}

func (j *judge) meta(e Expr, b Box, regs *registers) (result, error) {
	key := u32(e.Attr[unix.NFTA_META_KEY])
	if _, writes := e.Attr[metaSreg]; writes {
		r := goingOn(b)
		r.detour = fmt.Sprintf("a rule that sets meta key %d", key)
		return r, nil
	}
	reg := u32(e.Attr[unix.NFTA_META_DREG])
	switch key {
	case unix.NFT_META_SKUID:
		return goingOn(b), regs.set(reg, known(binary.NativeEndian.AppendUint32(nil, j.uid)))
	case unix.NFT_META_NFPROTO:
		f := byte(unix.NFPROTO_IPV4)
		if b.IPv6 {
			f = unix.NFPROTO_IPV6
		}
		return goingOn(b), regs.set(reg, known([]byte{f}))
	case unix.NFT_META_L4PROTO:
		return goingOn(b), regs.set(reg, fieldCells(protoField, 1))
	}
	return goingOn(b), regs.set(reg, make([]cell, 16))
}

// payload loads a part of the packet. Only what a box holds is known by name.
func payload(e Expr, b Box, regs *registers) (result, error) {
	if _, writes := e.Attr[unix.NFTA_PAYLOAD_SREG]; writes {
		r := goingOn(b)
		r.detour = "a rule that writes into packets"
		return r, nil
	}
	reg, base := u32(e.Attr[unix.NFTA_PAYLOAD_DREG]), u32(e.Attr[unix.NFTA_PAYLOAD_BASE])
	off, n := u32(e.Attr[unix.NFTA_PAYLOAD_OFFSET]), u32(e.Attr[unix.NFTA_PAYLOAD_LEN])
	if n == 0 || n > 16*4 {
		return result{}, fmt.Errorf("loads %d bytes", n)
	}
	cells := make([]cell, n)
	tcp, ports := b.Proto == Range{unix.IPPROTO_TCP, unix.IPPROTO_TCP}, hasPorts(b.Proto)
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && !b.IPv6 && off == 16 && n <= 4, base == unix.NFT_PAYLOAD_NETWORK_HEADER && b.IPv6 && off == 24 && n <= 16:
		cells = fieldCells(addressField, int(n))
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && !b.IPv6 && off == 12 && n <= 4, base == unix.NFT_PAYLOAD_NETWORK_HEADER && b.IPv6 && off == 8 && n <= 16:
		cells = fieldCells(sourceField, int(n))
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && ports && off == 0 && n == 2:
		cells = fieldCells(sourcePortField, 2)
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && ports && off == 2 && n == 2:
		cells = fieldCells(portField, 2)
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && tcp && off == 13 && n == 1:
		cells = fieldCells(flagsField, 1)
	}
	return goingOn(b), regs.set(reg, cells)
}

// hasPorts says whether a protocol has its destination port where TCP does.
func hasPorts(p Range) bool {
	if p.First != p.Last {
		return false
	}
	switch p.First {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP:
		return true
	}
	return false
}

func cmp(b Box, regs *registers, reg, op uint32, data []byte) (result, error) {
	cells, err := regs.get(reg, len(data))
	if err != nil {
		return result{}, err
	}
	low, high := make([]byte, len(data)), bytes.Repeat([]byte{255}, len(data))
	switch op {
	case unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ:
		return compare(b, cells, op, data, data), nil
	case unix.NFT_CMP_GTE:
		return compare(b, cells, unix.NFT_CMP_EQ, data, high), nil
	case unix.NFT_CMP_LTE:
		return compare(b, cells, unix.NFT_CMP_EQ, low, data), nil
	case unix.NFT_CMP_LT: // not at or above
		return compare(b, cells, unix.NFT_CMP_NEQ, data, high), nil
	case unix.NFT_CMP_GT:
		return compare(b, cells, unix.NFT_CMP_NEQ, low, data), nil
	}
	return result{}, fmt.Errorf("comparison %d", op)
}

// bitwise keeps SYN of TCP's flags and prefixes of addresses, and computes with
// what is known.
func bitwise(e Expr, regs *registers) error {
	n := u32(e.Attr[unix.NFTA_BITWISE_LEN])
	src, dst := u32(e.Attr[unix.NFTA_BITWISE_SREG]), u32(e.Attr[unix.NFTA_BITWISE_DREG])
	if n == 0 || n > 64 {
		return fmt.Errorf("works on %d bytes", n)
	}
	if op, ok := e.Attr[bitwiseOp]; ok && u32(op) != 0 {
		return regs.set(dst, make([]cell, n))
	}
	mask, err := value(e.Attr[unix.NFTA_BITWISE_MASK])
	if err != nil {
		return err
	}
	xor, err := value(e.Attr[unix.NFTA_BITWISE_XOR])
	if err != nil {
		return err
	}
	cells, err := regs.get(src, int(n))
	if err != nil {
		return err
	}
	if len(mask) != int(n) || len(xor) != int(n) {
		return fmt.Errorf("a mask of %d bytes for %d", len(mask), n)
	}
	out := make([]cell, n)
	for i, c := range cells {
		switch {
		case c.known:
			out[i] = cell{known: true, value: c.value&mask[i] ^ xor[i]}
		case (c.field == addressField || c.field == sourceField) && xor[i] == 0:
			out[i] = c
			out[i].mask &= mask[i]
		case mask[i] == 0:
			out[i] = cell{known: true, value: xor[i]}
		case mask[i] == 0xff && xor[i] == 0:
			out[i] = c
		case (c.field == flagsField || c.field == synField) && mask[i] == synBit && xor[i] == 0:
			out[i] = cell{field: synField, mask: 0xff}
		}
	}
	return regs.set(dst, out)
}

// byteorder turns known 32-bit numbers around on a little-endian machine.
func byteorder(e Expr, regs *registers) error {
	n, size := u32(e.Attr[unix.NFTA_BYTEORDER_LEN]), u32(e.Attr[unix.NFTA_BYTEORDER_SIZE])
	src, dst := u32(e.Attr[unix.NFTA_BYTEORDER_SREG]), u32(e.Attr[unix.NFTA_BYTEORDER_DREG])
	if n == 0 || n > 64 || size == 0 || n%size != 0 {
		return fmt.Errorf("turns %d bytes by %d", n, size)
	}
	cells, err := regs.get(src, int(n))
	if err != nil {
		return err
	}
	out := slices.Clone(cells)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		for i := 0; i < len(out); i += int(size) {
			slices.Reverse(out[i : i+int(size)])
		}
	}
	for i, c := range out {
		if !c.known {
			out[i] = cell{}
		}
	}
	return regs.set(dst, out)
}

func immediate(e Expr, b Box, regs *registers) (result, error) {
	data := e.Attr[unix.NFTA_IMMEDIATE_DATA]
	v, err := verdictOf(data)
	if err != nil {
		return result{}, err
	}
	if v != nil {
		return result{matched: []match{{b, v}}}, nil
	}
	val, err := value(data)
	if err != nil {
		return result{}, err
	}
	return goingOn(b), regs.set(u32(e.Attr[unix.NFTA_IMMEDIATE_DREG]), known(val))
}

// lookup cuts a box at the elements of a set or a verdict map.
func (j *judge) lookup(e Expr, b Box, regs *registers) (result, error) {
	name := strings.TrimRight(string(e.Attr[unix.NFTA_LOOKUP_SET]), "\x00")
	set := j.table.Sets[name]
	if set == nil {
		return result{}, fmt.Errorf("set %q is not in table %s", name, j.table)
	}
	cells, err := regs.get(u32(e.Attr[unix.NFTA_LOOKUP_SREG]), set.KeyLen)
	if err != nil {
		return result{}, err
	}
	inverted := len(e.Attr[unix.NFTA_LOOKUP_FLAGS]) == 4 && u32(e.Attr[unix.NFTA_LOOKUP_FLAGS])&lookupInv != 0
	dreg, maps := e.Attr[unix.NFTA_LOOKUP_DREG]
	rest := []Box{b}
	var r result
	for _, el := range set.Elements {
		var left []Box
		for _, box := range rest {
			in, out, ok := inElement(box, cells, el)
			if !ok {
				return unknownLookup(b, set, maps, regs, dreg)
			}
			for _, m := range in {
				r.matched = append(r.matched, match{m, el.Verdict})
			}
			left = append(left, out...)
		}
		if rest = left; len(rest)+len(r.matched) > maxBoxes {
			return result{}, errTooMuch
		}
	}
	if inverted {
		return parts(rest, boxesOf(r.matched)), nil
	}
	r.unmatched = rest
	if maps && u32(dreg) != verdictRegister && !slices.ContainsFunc(r.matched, func(m match) bool { return m.verdict != nil }) {
		// A map to data: what it gives is not followed.
		return r, regs.set(u32(dreg), make([]cell, 16))
	}
	return r, nil
}

func boxesOf(list []match) []Box {
	out := make([]Box, len(list))
	for i, m := range list {
		out[i] = m.box
	}
	return out
}

// unknownLookup follows every verdict that a map could give, and a miss.
func unknownLookup(b Box, set *Set, maps bool, regs *registers, dreg []byte) (result, error) {
	r := either(b)
	if !maps {
		return r, nil
	}
	r.matched = nil
	b.Guess = true
	for _, el := range set.Elements {
		if el.Verdict != nil {
			r.matched = append(r.matched, match{b, el.Verdict})
		}
	}
	if len(r.matched) == 0 && u32(dreg) != verdictRegister {
		r.matched = []match{{box: b}}
		return r, regs.set(u32(dreg), make([]cell, 16))
	}
	return r, nil
}

// inElement cuts a box at one element, field by field. What is left is cut so
// that no packet is in two parts.
func inElement(b Box, cells []cell, el Element) (in, out []Box, ok bool) {
	if len(el.Key) != len(cells) || len(el.Last) != len(cells) {
		return nil, nil, false
	}
	in = []Box{b}
	for at := 0; at < len(cells); {
		n := 1
		for at+n < len(cells) && cells[at+n].known == cells[at].known && (cells[at].known || cells[at+n].field == cells[at].field && cells[at+n].index == n) {
			n++
		}
		var next []Box
		for _, box := range in {
			i, o, ok := within(box, cells[at:at+n], el.Key[at:at+n], el.Last[at:at+n])
			if !ok {
				return nil, nil, false
			}
			next = append(next, i...)
			out = append(out, o...)
		}
		in = next
		at += n
	}
	return in, out, true
}
