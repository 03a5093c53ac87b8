package packets

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// Classes gives ids of a closed range that stand for all of it: the first, the
// last and those at and beside every number of 32 bits that the rules or sets
// hold. Rules tell ids apart by comparing them with such numbers only, so ids
// between two of them are judged alike.
func (r *Ruleset) Classes(first, last uint32) []uint32 {
	seen := map[uint32]bool{first: true, last: true}
	add := func(b []byte) {
		if len(b) != 4 {
			return
		}
		for _, v := range []uint32{binary.BigEndian.Uint32(b), binary.NativeEndian.Uint32(b)} {
			for _, n := range []uint32{v - 1, v, v + 1} {
				if n >= first && n <= last {
					seen[n] = true
				}
			}
		}
	}
	for _, t := range r.Tables {
		for _, c := range t.Chains {
			for _, rule := range c.Rules {
				for _, e := range rule.Exprs {
					for _, attr := range constants(e) {
						add(attr)
					}
				}
			}
		}
		for _, s := range t.Sets {
			for _, el := range s.Elements {
				add(el.Key)
				add(el.Last)
			}
		}
	}
	out := make([]uint32, 0, len(seen))
	for n := range seen {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// constants are the values that an expression compares with.
func constants(e Expr) [][]byte {
	var nests [][]byte
	switch e.Name {
	case "cmp":
		nests = [][]byte{e.Attr[unix.NFTA_CMP_DATA]}
	case "range":
		nests = [][]byte{e.Attr[unix.NFTA_RANGE_FROM_DATA], e.Attr[unix.NFTA_RANGE_TO_DATA]}
	case "bitwise":
		nests = [][]byte{e.Attr[unix.NFTA_BITWISE_MASK], e.Attr[unix.NFTA_BITWISE_XOR]}
	}
	var out [][]byte
	for _, n := range nests {
		if v, err := value(n); err == nil {
			out = append(out, v)
		}
	}
	return out
}
