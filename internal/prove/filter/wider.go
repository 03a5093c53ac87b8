package filter

import (
	"errors"
	"slices"
)

// call is the number and the architecture of a system call.
type call [2]uint32 // Nr, Arch

// Wider lists calls that the filters of one thread let through together and
// that want refuses: none means that the thread may do no more than want allows,
// for any call number, architecture and argument. At most most are listed.
//
// Filters compare call numbers and architectures with constants, so those
// between two constants are treated alike: one of each such class stands for
// all. For a filter that looks at single bits of them that would be wrong, and
// all its paths are compared instead.
func Wider(filters []Program, want Program, most int) ([]Difference, error) {
	var out []Difference
	for _, c := range classes(append(slices.Clone(filters), want)) {
		found, err := wider(filters, want, &c, most-len(out))
		if errors.Is(err, errClass) {
			return wider(filters, want, nil, most)
		}
		if err != nil {
			return nil, err
		}
		if out = append(out, found...); len(out) >= most {
			break
		}
	}
	return out, nil
}

// classes gives one call for each way in which the programs can tell call
// numbers and architectures apart.
func classes(programs []Program) []call {
	nrs, archs := map[uint32]bool{0: true, ^uint32(0): true}, map[uint32]bool{0: true, ^uint32(0): true}
	for _, p := range programs {
		holds := p.holds()
		for i, in := range p {
			switch in.Op {
			case opEq, opGt, opGe, opSet:
				for _, n := range []uint32{in.K - 1, in.K, in.K + 1} {
					if holds[i]&(1<<Nr) != 0 {
						nrs[n] = true
					}
					if holds[i]&(1<<Arch) != 0 {
						archs[n] = true
					}
				}
			}
		}
	}
	var out []call
	for arch := range archs {
		for nr := range nrs {
			out = append(out, call{nr, arch})
		}
	}
	return out
}

// holds says, for each instruction, which words the accumulator may hold when it
// is reached: a bit for each. Jumps lead forward only, so one pass finds it.
func (p Program) holds() []uint32 {
	type registers struct{ a, x, mem uint32 }
	at := make([]registers, len(p)+1)
	out := make([]uint32, len(p))
	for i, in := range p {
		r := at[i]
		out[i] = r.a
		switch in.Op {
		case opLoad:
			r.a = 1 << (in.K / 4)
		case opLoadConst:
			r.a = 0
		case opLoadMem:
			r.a = r.mem
		case opLoadX:
			r.x = 0
		case opLoadXMem:
			r.x = r.mem
		case opStore:
			r.mem |= r.a
		case opStoreX:
			r.mem |= r.x
		case opTax:
			r.x = r.a
		case opTxa:
			r.a = r.x
		}
		for _, to := range in.next(i) {
			if to < len(at) {
				at[to] = registers{at[to].a | r.a, at[to].x | r.x, at[to].mem | r.mem}
			}
		}
	}
	return out
}

func wider(filters []Program, want Program, of *call, most int) ([]Difference, error) {
	ref, err := want.paths(of)
	if err != nil {
		return nil, err
	}
	var out []Difference
	for _, w := range ref {
		if w.Answer.Allowed() {
			continue
		}
		found, err := through(filters, w.When, of)
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			out = append(out, Difference{Data: d, Got: Answer(retAllow), Want: w.Answer})
			if len(out) >= most {
				return out, nil
			}
		}
	}
	return out, nil
}

// retAllow is SECCOMP_RET_ALLOW.
const retAllow = 0x7fff0000

// through finds words within when that every filter lets through.
func through(filters []Program, when Conjunction, of *call) ([]Data, error) {
	cases := []Conjunction{when}
	for _, f := range filters {
		paths, err := f.paths(of)
		if err != nil {
			return nil, err
		}
		var next []Conjunction
		for _, c := range cases {
			for _, p := range paths {
				if !p.Answer.Allowed() || apart(c, p.When) {
					continue
				}
				both := append(slices.Clone(c), p.When...)
				if _, ok := both.Solve(); ok {
					next = append(next, both)
				}
			}
		}
		cases = next
	}
	var out []Data
	for _, c := range cases {
		d, ok := c.Solve()
		if !ok {
			continue
		}
		if of != nil {
			d[Nr], d[Arch] = of[Nr], of[Arch]
		}
		for _, f := range filters { // the witness is run: it is a fact, however it was found
			a, err := f.Run(d)
			if err != nil {
				return nil, err
			}
			if !a.Allowed() {
				return nil, errWitness
			}
		}
		out = append(out, d)
	}
	return out, nil
}
