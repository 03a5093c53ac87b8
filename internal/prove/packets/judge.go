package packets

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Bounds of the work on rules that somebody else wrote.
const (
	maxDepth = 32 // jumps within jumps; the kernel allows 16 (NFT_JUMP_STACK_SIZE)
	maxBoxes = 1 << 16
)

// errTooMuch says that a ruleset cuts packets into more boxes than are followed.
var errTooMuch = errors.New("packets: the rules make more cases than can be followed")

// outcome is what a chain does with packets.
type outcome struct {
	accepted, dropped, ended []Box // ended: at its end, or at a return
}

func (o *outcome) add(p outcome) {
	o.accepted = append(o.accepted, p.accepted...)
	o.dropped = append(o.dropped, p.dropped...)
	o.ended = append(o.ended, p.ended...)
}

// judge interprets one table for the packets of one id.
type judge struct {
	table   *Table
	uid     uint32
	detours []string // rules met that change where a packet goes
	boxes   int
}

func (j *judge) chain(name string, boxes []Box, depth int) (outcome, error) {
	var out outcome
	c := j.table.Chains[name]
	if c == nil || depth > maxDepth {
		return out, fmt.Errorf("packets: table %s leads to chain %q, which it does not have", j.table, name)
	}
	for _, rule := range c.Rules {
		var next []Box
		for _, b := range boxes {
			done, on, err := j.rule(c, rule, b, depth)
			if err != nil {
				return out, err
			}
			out.add(done)
			next = append(next, on...)
		}
		boxes = tidy(next)
		if j.boxes += len(boxes); j.boxes > maxBoxes {
			return out, errTooMuch
		}
	}
	out.ended = append(out.ended, boxes...)
	return out, nil
}

// rule gives what becomes of a box, and what of it goes on to the next rule.
func (j *judge) rule(c *Chain, r Rule, b Box, depth int) (done outcome, on []Box, err error) {
	type cursor struct {
		box  Box
		regs registers
		at   int
	}
	todo := []cursor{{box: b}}
	for len(todo) > 0 {
		cur := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if cur.at == len(r.Exprs) {
			on = append(on, cur.box)
			continue
		}
		e := r.Exprs[cur.at]
		res, err := j.expr(e, cur.box, &cur.regs)
		if err != nil {
			return done, nil, fmt.Errorf("packets: table %s chain %s rule %d: %s: %w", j.table, c.Name, r.Handle, e.Name, err)
		}
		if res.detour != "" {
			j.detours = append(j.detours, fmt.Sprintf("table %s chain %s rule %d: %s for %s", j.table, c.Name, r.Handle, res.detour, cur.box))
		}
		on = append(on, res.unmatched...)
		for _, m := range res.matched {
			if m.verdict == nil {
				todo = append(todo, cursor{m.box, cur.regs, cur.at + 1})
				continue
			}
			d, o, err := j.verdict(*m.verdict, m.box, depth)
			if err != nil {
				return done, nil, err
			}
			done.add(d)
			if m.verdict.Code == goOn {
				todo = append(todo, cursor{m.box, cur.regs, cur.at + 1})
			} else {
				on = append(on, o...)
			}
		}
	}
	return done, on, nil
}

func (j *judge) verdict(v Verdict, b Box, depth int) (done outcome, on []Box, err error) {
	switch v.Code {
	case accept:
		done.accepted = []Box{b}
	case drop:
		done.dropped = []Box{b}
	case goOn, nextRule:
		if v.Code == nextRule {
			on = []Box{b}
		}
	case back:
		done.ended = []Box{b}
	case jump, gotoChain:
		sub, err := j.chain(v.Chain, []Box{b}, depth+1)
		if err != nil {
			return done, nil, err
		}
		done.accepted, done.dropped = sub.accepted, sub.dropped
		if v.Code == jump {
			on = sub.ended
		} else {
			done.ended = sub.ended
		}
	default: // a queue to a program, or what is not known: anything may happen
		j.detours = append(j.detours, fmt.Sprintf("table %s: verdict %d for %s", j.table, v.Code, b))
		b.Guess = true
		done.accepted = []Box{b}
	}
	return done, on, nil
}

// cell is one byte of a register: known, or a byte of a field of the packet.
type cell struct {
	known bool
	value byte
	field field
	index int
	mask  byte // of the field's byte, the bits that are left; only of an address fewer than all
}

// field is a part of a packet that a box knows.
type field uint8

const (
	unknownField field = iota
	protoField
	addressField
	portField
	sourceField
	sourcePortField
	flagsField // TCP's flags
	synField   // TCP's flags, of which only SYN is left
)

// registers are the kernel's 16 registers of 32 bits.
type registers [64]cell

// offset turns a register number into an index (linux/netfilter/nf_tables.h:
// NFT_REG_1 to 4 are 16 bytes each, NFT_REG32_00 to 15 share their storage).
func offset(reg uint32) (int, error) {
	switch {
	case reg >= unix.NFT_REG_1 && reg <= unix.NFT_REG_4:
		return int(reg-unix.NFT_REG_1) * 16, nil
	case reg >= unix.NFT_REG32_00 && reg <= unix.NFT_REG32_15:
		return int(reg-unix.NFT_REG32_00) * 4, nil
	}
	return 0, fmt.Errorf("register %d", reg)
}

// set writes cells, and zeros up to the end of the last 32-bit register, as the
// kernel does.
func (r *registers) set(reg uint32, cells []cell) error {
	at, err := offset(reg)
	if err != nil {
		return err
	}
	for len(cells)%4 != 0 {
		cells = append(cells, cell{known: true})
	}
	if at+len(cells) > len(r) {
		return fmt.Errorf("%d bytes do not fit into register %d", len(cells), reg)
	}
	copy(r[at:], cells)
	return nil
}

func (r *registers) get(reg uint32, n int) ([]cell, error) {
	at, err := offset(reg)
	if err != nil {
		return nil, err
	}
	if n < 0 || at+n > len(r) {
		return nil, fmt.Errorf("%d bytes from register %d", n, reg)
	}
	return r[at : at+n], nil
}

func known(b []byte) []cell {
	out := make([]cell, len(b))
	for i, v := range b {
		out[i] = cell{known: true, value: v}
	}
	return out
}

func fieldCells(f field, n int) []cell {
	out := make([]cell, n)
	for i := range out {
		out[i] = cell{field: f, index: i, mask: 0xff}
	}
	return out
}

// match is a part of a box that an expression lets go on.
type match struct {
	box     Box
	verdict *Verdict
}

// result is what one expression does with a box.
type result struct {
	matched   []match
	unmatched []Box
	detour    string
}

func goingOn(b Box) result { return result{matched: []match{{box: b}}} }

// either follows both outcomes: the rule looks at something that a box does not
// hold.
func either(b Box) result {
	b.Guess = true
	return result{matched: []match{{box: b}}, unmatched: []Box{b}}
}

func parts(in, out []Box) result {
	var r result
	for _, b := range in {
		r.matched = append(r.matched, match{box: b})
	}
	r.unmatched = out
	return r
}

func u32(b []byte) uint32 {
	if len(b) != 4 {
		return ^uint32(0)
	}
	return binary.BigEndian.Uint32(b)
}

// compare cuts a box by one comparison of cells with data.
func compare(b Box, cells []cell, op uint32, first, last []byte) result {
	if len(cells) != len(first) || len(cells) != len(last) || len(cells) == 0 {
		return either(b)
	}
	in, out, ok := within(b, cells, first, last)
	if !ok {
		return either(b)
	}
	if op == unix.NFT_CMP_NEQ {
		in, out = out, in
	}
	return parts(in, out)
}

// within cuts a box at first <= cells <= last. ok is false when the box does
// not hold what the cells are.
func within(b Box, cells []cell, first, last []byte) (in, out []Box, ok bool) {
	if !slices.ContainsFunc(cells, func(c cell) bool { return !c.known }) {
		v := make([]byte, len(cells))
		for i, c := range cells {
			v[i] = c.value
		}
		if bytes.Compare(first, v) <= 0 && bytes.Compare(v, last) <= 0 {
			return []Box{b}, nil, true
		}
		return nil, []Box{b}, true
	}
	f := cells[0].field
	for i, c := range cells {
		if c.known || c.field != f || c.index != i {
			return nil, nil, false
		}
	}
	switch f {
	case protoField:
		if len(cells) != 1 {
			return nil, nil, false
		}
		in, out = b.cutNumber(protoOf, Range{uint32(first[0]), uint32(last[0])})
		return in, out, true
	case portField, sourcePortField:
		if len(cells) != 2 {
			return nil, nil, false
		}
		d := portOf
		if f == sourcePortField {
			d = sourcePortOf
		}
		in, out = b.cutNumber(d, Range{uint32(binary.BigEndian.Uint16(first)), uint32(binary.BigEndian.Uint16(last))})
		return in, out, true
	case addressField, sourceField:
		return b.withinPrefix(f == sourceField, cells, first, last)
	case synField:
		if len(cells) != 1 || first[0] != last[0] {
			return nil, nil, false
		}
		switch first[0] {
		case 0:
			in, out = b.cutSyn(false)
		case synBit:
			in, out = b.cutSyn(true)
		default:
			out = []Box{b}
		}
		return in, out, true
	}
	return nil, nil, false
}

// synBit is SYN in the flags of TCP (RFC 9293, 3.1).
const synBit = 0x02

// withinPrefix cuts a box at an interval of the first bytes of its destination or
// source, or at one value of its first bits.
func (b Box) withinPrefix(sources bool, cells []cell, first, last []byte) (in, out []Box, ok bool) {
	n := 4
	if b.IPv6 {
		n = 16
	}
	if len(cells) > n {
		return nil, nil, false
	}
	lo, hi := make([]byte, n), bytes.Repeat([]byte{255}, n)
	whole, ended := true, false
	for i, c := range cells {
		if ended && c.mask != 0 || bits.LeadingZeros8(^c.mask) != bits.OnesCount8(c.mask) {
			return nil, nil, false // the bits that are left are no prefix
		}
		ended = c.mask != 0xff
		whole = whole && !ended
		if first[i]&^c.mask != 0 && bytes.Equal(first, last) {
			return nil, []Box{b}, true // no address has these bits after the mask
		}
		lo[i], hi[i] = first[i], last[i]|^c.mask
	}
	if !whole && !bytes.Equal(first, last) {
		return nil, nil, false
	}
	from, _ := netip.AddrFromSlice(lo)
	to, _ := netip.AddrFromSlice(hi)
	in, out = b.cut(sources, from, to)
	return in, out, true
}
