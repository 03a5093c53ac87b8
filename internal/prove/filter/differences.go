package filter

import (
	"errors"
	"fmt"
	"slices"
)

// Difference is a call for which two filters answer differently.
type Difference struct {
	Data      Data // the words of one such call
	Got, Want Answer
}

// String says which call.
func (d Difference) String() string {
	return fmt.Sprintf("arch %#x nr %d args %#x: %s, want %s", d.Data[Arch], d.Data[Nr], d.Data[args:], d.Got, d.Want)
}

// Differences compares two filters for every input there is, and lists calls
// for which they differ: none means that they are the same function. At most
// most are listed.
func Differences(got, want Program, most int) ([]Difference, error) {
	a, err := got.Paths()
	if err != nil {
		return nil, err
	}
	b, err := want.Paths()
	if err != nil {
		return nil, err
	}
	var out []Difference
	for _, p := range a {
		for _, q := range b {
			if p.Answer == q.Answer || apart(p.When, q.When) {
				continue
			}
			d, ok := append(slices.Clone(p.When), q.When...).Solve()
			if !ok {
				continue
			}
			diff := Difference{Data: d}
			// The witness is run: it is a fact, however it was found.
			if diff.Got, err = got.Run(d); err != nil {
				return nil, err
			}
			if diff.Want, err = want.Run(d); err != nil {
				return nil, err
			}
			if diff.Got == diff.Want {
				return nil, errWitness
			}
			if out = append(out, diff); len(out) >= most {
				return out, nil
			}
		}
	}
	return out, nil
}

// errWitness says that what was found is not so: a fault of this program.
var errWitness = errors.New("filter: a call was found for which the filters answer otherwise than they do: a fault of this program")

// apart is a quick no for most pairs: their call numbers do not meet.
func apart(p, q Conjunction) bool {
	pl, ph := interval(p)
	ql, qh := interval(q)
	return pl > qh || ql > ph
}

// interval bounds the call numbers of a conjunction.
func interval(c Conjunction) (low, high uint32) {
	high = ^uint32(0)
	for _, a := range c {
		if a.Word != Nr || a.Mask != ^uint32(0) {
			continue
		}
		switch a.how {
		case equal:
			low, high = max(low, a.Value), min(high, a.Value)
		case above:
			if a.Value < ^uint32(0) {
				low = max(low, a.Value+1)
			}
		case atMost:
			high = min(high, a.Value)
		case unequal:
		}
	}
	return low, high
}

// Calls lists the call numbers of one architecture, as closed intervals, for
// which the filter can answer in a way that the caller picks, for some
// arguments.
func (p Program) Calls(arch uint32, pick func(Answer) bool) ([][2]uint32, error) {
	paths, err := p.Paths()
	if err != nil {
		return nil, err
	}
	var out [][2]uint32
	for _, path := range paths {
		if !pick(path.Answer) {
			continue
		}
		when := append(slices.Clone(path.When), Atom{Word: Arch, Mask: ^uint32(0), how: equal, Value: arch})
		if _, ok := when.Solve(); ok {
			out = append(out, numbers(path.When)...)
		}
	}
	slices.SortFunc(out, func(a, b [2]uint32) int { return slices.Compare(a[:], b[:]) })
	merged := out[:0]
	for _, iv := range out {
		if n := len(merged); n > 0 && uint64(iv[0]) <= uint64(merged[n-1][1])+1 {
			merged[n-1][1] = max(merged[n-1][1], iv[1])
			continue
		}
		merged = append(merged, iv)
	}
	return merged, nil
}

// numbers are the call numbers that a conjunction leaves: its interval without
// the single ones that it names. Comparisons of some bits of the number only
// are left out, which can make the answer larger, never smaller.
func numbers(c Conjunction) [][2]uint32 {
	low, high := interval(c)
	var holes []uint32
	for _, a := range c {
		if a.Word == Nr && a.Mask == ^uint32(0) && a.how == unequal && a.Value >= low && a.Value <= high {
			holes = append(holes, a.Value)
		}
	}
	slices.Sort(holes)
	var out [][2]uint32
	for _, h := range slices.Compact(holes) {
		if h > low {
			out = append(out, [2]uint32{low, h - 1})
		}
		if h == high {
			return out
		}
		low = h + 1
	}
	return append(out, [2]uint32{low, high})
}
