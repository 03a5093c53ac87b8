package filter

import (
	"errors"
	"fmt"
	"slices"
)

// Path is one way through a filter: for all words that meet When, it answers
// Answer.
type Path struct {
	When   Conjunction
	Answer Answer
}

// maxPaths bounds the work for a filter that somebody else made.
const maxPaths = 1 << 20

// value is what a register holds: a constant, or some bits of a word.
type value struct {
	word  Word // -1: a constant
	mask  uint32
	konst uint32
	unset bool
	fixed bool // a constant that stands for a class of call numbers or architectures
}

func constant(k uint32) value { return value{word: -1, konst: k} }

// state is where one path is.
type state struct {
	at   int
	a, x value
	mem  [scratch]value
	when Conjunction
}

// errClass says that a filter looks at single bits of a number that stands for a
// class of numbers.
var errClass = errors.New("filter: looks at bits of a call number or architecture")

// Paths lists every way through the filter that some words can take. They
// exclude each other and cover every value.
func (p Program) Paths() ([]Path, error) { return p.paths(nil) }

// paths does so for one call number and architecture, when a call is given.
func (p Program) paths(of *call) ([]Path, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	start := state{a: constant(0), x: constant(0)}
	for i := range start.mem {
		start.mem[i].unset = true
	}
	var out []Path
	todo := []state{start}
	for steps := 0; len(todo) > 0; steps++ {
		if len(out) > maxPaths || steps > maxPaths {
			return nil, fmt.Errorf("filter: more than %d paths", maxPaths)
		}
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		path, forks, err := p.follow(s, of)
		if err != nil {
			return nil, fmt.Errorf("filter: instruction %d: %w", s.at, err)
		}
		if path != nil {
			out = append(out, *path)
		}
		todo = append(todo, forks...)
	}
	return out, nil
}

// follow goes on until the path ends or forks.
func (p Program) follow(s state, of *call) (*Path, []state, error) {
	for {
		in := p[s.at]
		switch in.Op {
		case opLoad:
			s.a = value{word: Word(in.K / 4), mask: ^uint32(0)}
			if of != nil && (s.a.word == Nr || s.a.word == Arch) {
				s.a = value{word: -1, konst: of[s.a.word], fixed: true}
			}
		case opLoadConst:
			s.a = constant(in.K)
		case opLoadX:
			s.x = constant(in.K)
		case opLoadMem, opLoadXMem:
			v := s.mem[in.K]
			if v.unset {
				return nil, nil, errMemory
			}
			if in.Op == opLoadMem {
				s.a = v
			} else {
				s.x = v
			}
		case opStore:
			s.mem[in.K] = s.a
		case opStoreX:
			s.mem[in.K] = s.x
		case opAnd:
			if s.a.fixed {
				return nil, nil, errClass
			}
			if s.a.word < 0 {
				s.a.konst &= in.K
			} else {
				s.a.mask &= in.K
			}
		case opTax:
			s.x = s.a
		case opTxa:
			s.a = s.x
		case opJump:
			s.at += int(in.K)
		case opRet:
			return &Path{When: s.when, Answer: Answer(in.K)}, nil, nil
		case opRetA:
			if s.a.word >= 0 {
				return nil, nil, errors.New("answers with a word of its input")
			}
			return &Path{When: s.when, Answer: Answer(s.a.konst)}, nil, nil
		default:
			forks, err := s.fork(in)
			return nil, forks, err
		}
		s.at++
	}
}

// fork takes both sides of a comparison that some words can take.
func (s state) fork(in Instruction) ([]state, error) {
	k := in.K
	if in.Op == opSet && s.a.fixed || in.Op == opEqX && (s.a.fixed || s.x.fixed) {
		return nil, errClass
	}
	if in.Op == opEqX {
		if s.x.word >= 0 {
			return nil, errors.New("compares two words of its input")
		}
		k = s.x.konst
	}
	atom := Atom{Word: s.a.word, Mask: s.a.mask, Value: k}
	switch in.Op {
	case opEq, opEqX:
		atom.how = equal
	case opGt:
		atom.how = above
	case opGe:
		if k == 0 {
			s.at += 1 + int(in.Jt)
			return []state{s}, nil
		}
		atom.how, atom.Value = above, k-1
	case opSet:
		atom.how, atom.Mask, atom.Value = unequal, s.a.mask&k, 0
	default:
		return nil, in.check()
	}
	if s.a.word < 0 {
		if in.Op == opSet {
			atom.Mask = k
		} else {
			atom.Mask = ^uint32(0)
		}
		if atom.holds(s.a.konst) {
			s.at += 1 + int(in.Jt)
		} else {
			s.at += 1 + int(in.Jf)
		}
		return []state{s}, nil
	}
	var out []state
	for _, side := range []struct {
		atom Atom
		skip uint8
	}{{atom, in.Jt}, {atom.not(), in.Jf}} {
		t := s
		t.at += 1 + int(side.skip)
		t.when = append(slices.Clone(s.when), side.atom)
		if _, ok := t.when.Solve(); ok {
			out = append(out, t)
		}
	}
	return out, nil
}
