package filter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Instruction is the kernel's struct sock_filter.
type Instruction struct {
	Op     uint16
	Jt, Jf uint8
	K      uint32
}

// Program is a filter as the kernel runs it.
type Program []Instruction

// Sizes of programs (linux/bpf_common.h: BPF_MAXINSNS).
const (
	instructionSize = 8
	maxInstructions = 4096
	scratch         = 16 // BPF_MEMWORDS
)

// Parse reads a program from the bytes of an array of struct sock_filter, and
// refuses one that a seccomp filter cannot be.
func Parse(raw []byte) (Program, error) {
	if len(raw) == 0 || len(raw)%instructionSize != 0 || len(raw) > maxInstructions*instructionSize {
		return nil, fmt.Errorf("filter: %d bytes are no filter", len(raw))
	}
	p := make(Program, 0, len(raw)/instructionSize)
	for b := raw; len(b) > 0; b = b[instructionSize:] {
		p = append(p, Instruction{Op: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.NativeEndian.Uint32(b[4:])})
	}
	return p, p.check()
}

// check makes sure that every way through the program ends in a return and that
// everything it does is understood here.
func (p Program) check() error {
	for i, in := range p {
		if err := in.check(); err != nil {
			return fmt.Errorf("filter: instruction %d: %w", i, err)
		}
		for _, to := range in.next(i) {
			if to >= len(p) {
				return fmt.Errorf("filter: instruction %d leads past the end", i)
			}
		}
	}
	return nil
}

// Opcodes that a seccomp filter may have and that this package follows. The
// kernel's own list is seccomp_check_filter in kernel/seccomp.c.
const (
	opLoad      = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opLoadConst = unix.BPF_LD | unix.BPF_IMM
	opLoadMem   = unix.BPF_LD | unix.BPF_MEM
	opLoadX     = unix.BPF_LDX | unix.BPF_IMM
	opLoadXMem  = unix.BPF_LDX | unix.BPF_MEM
	opStore     = unix.BPF_ST
	opStoreX    = unix.BPF_STX
	opAnd       = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJump      = unix.BPF_JMP | unix.BPF_JA
	opEq        = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opGt        = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opGe        = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opSet       = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	opEqX       = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X
	opRet       = unix.BPF_RET | unix.BPF_K
	opRetA      = unix.BPF_RET | unix.BPF_A
	opTax       = unix.BPF_MISC | unix.BPF_TAX
	opTxa       = unix.BPF_MISC | unix.BPF_TXA
)

func (in Instruction) check() error {
	switch in.Op {
	case opLoad:
		if in.K%4 != 0 || in.K >= 4*words {
			return fmt.Errorf("loads from offset %d", in.K)
		}
	case opLoadMem, opLoadXMem, opStore, opStoreX:
		if in.K >= scratch {
			return fmt.Errorf("uses memory word %d", in.K)
		}
	case opLoadConst, opLoadX, opAnd, opJump, opEq, opGt, opGe, opSet, opEqX, opRet, opRetA, opTax, opTxa:
	default:
		return fmt.Errorf("opcode %#x is not understood", in.Op)
	}
	return nil
}

// next lists where instruction i may lead.
func (in Instruction) next(i int) []int {
	switch in.Op {
	case opRet, opRetA:
		return nil
	case opJump:
		if in.K > maxInstructions {
			return []int{maxInstructions}
		}
		return []int{i + 1 + int(in.K)}
	case opEq, opGt, opGe, opSet, opEqX:
		return []int{i + 1 + int(in.Jt), i + 1 + int(in.Jf)}
	}
	return []int{i + 1}
}

// errMemory is a read of what was not written, which the kernel refuses too.
var errMemory = errors.New("filter: reads memory that was not written")

// Run answers for one value, as the kernel would. It checks what [Program.Paths]
// says by another way.
func (p Program) Run(d Data) (Answer, error) {
	var a, x uint32
	var mem [scratch]uint32
	for i := 0; i < len(p); {
		in := p[i]
		i++
		jump := func(taken bool) {
			if taken {
				i += int(in.Jt)
			} else {
				i += int(in.Jf)
			}
		}
		switch in.Op {
		case opLoad:
			a = d[in.K/4]
		case opLoadConst:
			a = in.K
		case opLoadMem:
			a = mem[in.K]
		case opLoadX:
			x = in.K
		case opLoadXMem:
			x = mem[in.K]
		case opStore:
			mem[in.K] = a
		case opStoreX:
			mem[in.K] = x
		case opAnd:
			a &= in.K
		case opTax:
			x = a
		case opTxa:
			a = x
		case opJump:
			i += int(in.K)
		case opEq:
			jump(a == in.K)
		case opEqX:
			jump(a == x)
		case opGt:
			jump(a > in.K)
		case opGe:
			jump(a >= in.K)
		case opSet:
			jump(a&in.K != 0)
		case opRet:
			return Answer(in.K), nil
		case opRetA:
			return Answer(a), nil
		default:
			return 0, in.check()
		}
	}
	return 0, errors.New("filter: runs past its end")
}
