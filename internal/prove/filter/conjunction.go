package filter

import (
	"fmt"
	"slices"
	"strings"
)

// comparison is how an atom compares.
type comparison uint8

const (
	equal comparison = iota
	unequal
	above
	atMost
)

// Atom is one comparison: (word & Mask) against Value.
type Atom struct {
	Word  Word
	Mask  uint32
	how   comparison
	Value uint32
}

func (a Atom) not() Atom {
	a.how = [...]comparison{equal: unequal, unequal: equal, above: atMost, atMost: above}[a.how]
	return a
}

// holds says whether the atom is true for a value of its word.
func (a Atom) holds(v uint32) bool {
	v &= a.Mask
	switch a.how {
	case equal:
		return v == a.Value
	case unequal:
		return v != a.Value
	case above:
		return v > a.Value
	}
	return v <= a.Value
}

// String reads like the comparison.
func (a Atom) String() string {
	left := a.Word.String()
	if a.Mask != ^uint32(0) {
		left = fmt.Sprintf("%s&%#x", left, a.Mask)
	}
	return fmt.Sprintf("%s %s %#x", left, [...]string{"==", "!=", ">", "<="}[a.how], a.Value)
}

// Conjunction is a set of comparisons, all of which hold.
type Conjunction []Atom

// String joins the comparisons.
func (c Conjunction) String() string {
	parts := make([]string, len(c))
	for i, a := range c {
		parts[i] = a.String()
	}
	return strings.Join(parts, " and ")
}

// Solve finds words for which all comparisons hold. That none are found means
// that there are none: words do not depend on one another, and each is decided
// exactly.
func (c Conjunction) Solve() (Data, bool) {
	var d Data
	for w := range Word(words) {
		mine := slices.DeleteFunc(slices.Clone(c), func(a Atom) bool { return a.Word != w })
		v, ok := solveWord(mine)
		if !ok {
			return Data{}, false
		}
		d[w] = v
	}
	return d, true
}

// span is the values from low to high, of which the bits of mask are fixed.
type span struct {
	low, high   uint32
	mask, value uint32
}

// solveWord finds a value of one word for which all atoms hold. Comparisons of
// the whole word narrow an interval; those of some bits are turned into fixed
// bits, of which there may be several alternatives.
func solveWord(atoms []Atom) (uint32, bool) {
	s := span{high: ^uint32(0)}
	var alternatives []Atom
	for _, a := range atoms {
		whole := a.Mask == ^uint32(0)
		switch {
		case a.how == equal:
			if !s.fix(a.Mask, a.Value) {
				return 0, false
			}
		case whole && a.how == above:
			if a.Value == ^uint32(0) {
				return 0, false
			}
			s.low = max(s.low, a.Value+1)
		case whole && a.how == atMost:
			s.high = min(s.high, a.Value)
		default:
			alternatives = append(alternatives, a)
		}
	}
	return s.meet(alternatives)
}

// fix demands value in the bits of mask; false when other bits are demanded
// already, or when value has bits outside of the mask.
func (s *span) fix(mask, value uint32) bool {
	if value&^mask != 0 || (s.value^value)&s.mask&mask != 0 {
		return false
	}
	s.mask, s.value = s.mask|mask, s.value|value
	return true
}

// meet finds a value in the span for which the atoms hold too. Each atom is a
// choice of fixed bits; the least value of the span often meets them already.
func (s span) meet(atoms []Atom) (uint32, bool) {
	v, ok := s.least()
	if !ok {
		return 0, false
	}
	i := slices.IndexFunc(atoms, func(a Atom) bool { return !a.holds(v) })
	if i < 0 {
		return v, true
	}
	for _, alt := range atoms[i].alternatives() {
		t := s
		if !t.fix(alt.mask, alt.value) {
			continue
		}
		if v, ok := t.meet(atoms); ok {
			return v, true
		}
	}
	return 0, false
}

// bits is a demand on some bits.
type bits struct{ mask, value uint32 }

// alternatives are the demands of which one must hold for the atom to.
func (a Atom) alternatives() []bits {
	var out []bits
	value := a.Value
	switch a.how {
	case equal:
		return []bits{{a.Mask, value}}
	case unequal:
		if value&^a.Mask != 0 {
			return []bits{{}} // it always is
		}
		for b := uint32(1); b != 0; b <<= 1 {
			if a.Mask&b != 0 {
				out = append(out, bits{b, ^value & b})
			}
		}
		return out
	}
	// The highest bit in which the masked word and the value differ decides. All
	// higher bits are equal: those outside of the mask are 0 in the word.
	for shift := 31; shift >= -1; shift-- {
		var bit, higher uint32
		if shift >= 0 {
			bit = 1 << shift
			higher = ^(bit<<1 - 1)
		} else {
			higher = ^uint32(0)
		}
		if value&higher&^a.Mask != 0 {
			continue
		}
		equalAbove := bits{a.Mask & higher, value & higher}
		switch {
		case shift < 0:
			if a.how == atMost { // equal
				out = append(out, equalAbove)
			}
		case a.how == above && value&bit == 0 && a.Mask&bit != 0:
			out = append(out, bits{equalAbove.mask | bit, equalAbove.value | bit})
		case a.how == atMost && value&bit != 0:
			out = append(out, bits{equalAbove.mask | a.Mask&bit, equalAbove.value})
		}
	}
	return out
}

// least is the smallest value of the span.
func (s span) least() (uint32, bool) {
	if s.low > s.high {
		return 0, false
	}
	v := s.low&^s.mask | s.value
	if v < s.low {
		// Some free bit above the highest difference must grow: the lowest such
		// that is 0 in low, with the free bits below it at 0.
		var ok bool
		if v, ok = s.grow(); !ok {
			return 0, false
		}
	} else if v > s.low {
		// The fixed bits made it larger: free bits below the highest one that
		// differs may be 0.
		v = s.shrink()
	}
	return v, v <= s.high
}

// shrink is the least value at or above low with the fixed bits, when putting
// them into low makes it larger.
func (s span) shrink() uint32 {
	v := s.low&^s.mask | s.value
	diff := v ^ s.low
	top := uint32(1)
	for diff > 1 {
		diff >>= 1
		top <<= 1
	}
	// At top, v has a 1 where low has a 0: below it everything free may be 0.
	return v&^((top-1)&^s.mask) | s.value
}

// grow is the least value at or above low with the fixed bits, when putting
// them into low makes it smaller.
func (s span) grow() (uint32, bool) {
	v := s.low&^s.mask | s.value
	diff := v ^ s.low
	top := uint32(1)
	for diff > 1 {
		diff >>= 1
		top <<= 1
	}
	for b := top << 1; b != 0; b <<= 1 {
		if s.mask&b == 0 && s.low&b == 0 {
			return v&^((b-1)&^s.mask) | b | s.value, true
		}
	}
	return 0, false
}
