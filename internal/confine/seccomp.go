package confine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/forked"
)

// The answers of a filter (seccomp(2)).
const (
	retAllow       = unix.SECCOMP_RET_ALLOW
	retErrno       = unix.SECCOMP_RET_ERRNO // or-ed with the errno
	retKillProcess = unix.SECCOMP_RET_KILL_PROCESS
)

// Offsets in struct seccomp_data (linux/seccomp.h). Arguments are 64-bit
// little-endian on both architectures that we build for.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// argLow is the offset of the low 32 bits of argument i. The kernel cuts int
// arguments to 32 bits, so a filter that compares all 64 is passed by setting
// a high bit: socket(0x100000028) is AF_VSOCK.
func argLow(i int) uint32 { return uint32(offArgs + 8*i) } // #nosec G115 -- i is 0 to 5

// Filter is a compiled seccomp program.
type Filter struct {
	raw []bpf.RawInstruction
}

// Len is the number of instructions.
func (f *Filter) Len() int { return len(f.raw) }

// Raw gives a copy of the program, for the tests and for evidence.
func (f *Filter) Raw() []bpf.RawInstruction { return slices.Clone(f.raw) }

// Marshal gives the program as the kernel's struct sock_filter, eight bytes an
// instruction.
func (f *Filter) Marshal() []byte {
	out := make([]byte, 0, 8*len(f.raw))
	for _, r := range f.raw {
		out = binary.NativeEndian.AppendUint16(out, r.Op)
		out = append(out, r.Jt, r.Jf)
		out = binary.NativeEndian.AppendUint32(out, r.K)
	}
	return out
}

// ForRole gives the filter of a role. Filters are immutable.
func ForRole(r engine.Role) (*Filter, error) { return compiled(string(r)) }

// block is what happens with one call number: instructions that always end in
// a return.
type block []bpf.Instruction

func ret(v uint32) block { return block{bpf.RetConstant{Val: v}} }

func errno(e unix.Errno) block { return ret(retErrno | uint32(e)) } // #nosec G115 -- below 4096

// rules is a filter before compilation: every number that is not named gets
// otherwise.
type rules struct {
	arch      uint32
	x32       bool // numbers with bit 30 are the x32 ABI: kill
	calls     map[uint32]block
	otherwise block
}

// x32Bit marks calls of the x32 ABI, which shares amd64's audit architecture
// (arch/x86/include/uapi/asm/unistd.h).
const x32Bit = 0x40000000

// segment is a run of call numbers, from First to the next one's First, that
// share one block.
type segment struct {
	first uint32
	do    block
}

// compile makes a binary search over runs of call numbers. A chain of
// comparisons would be as right, but the kernel evaluates a new filter for
// every call number when it is installed (to find the ones that are always
// allowed), and a chain of hundreds makes each start slower.
func compile(r rules) (*Filter, error) {
	nrs := make([]uint32, 0, len(r.calls))
	for nr := range r.calls {
		if nr >= x32Bit {
			return nil, fmt.Errorf("confine: call number %#x is not one", nr)
		}
		nrs = append(nrs, nr)
	}
	slices.Sort(nrs)
	segs := []segment{{0, r.otherwise}}
	put := func(first uint32, do block) {
		last := &segs[len(segs)-1]
		switch {
		case slices.Equal(last.do, do):
		case last.first == first:
			last.do = do
		default:
			segs = append(segs, segment{first, do})
		}
	}
	for _, nr := range nrs {
		put(nr, r.calls[nr])
		put(nr+1, r.otherwise)
	}
	if r.x32 {
		put(x32Bit, ret(retKillProcess))
	}
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: r.arch, SkipTrue: 1},
		bpf.RetConstant{Val: retKillProcess},
		bpf.LoadAbsolute{Off: offNr, Size: 4},
	}
	prog = append(prog, search(segs)...)
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return nil, fmt.Errorf("confine: assemble the filter: %w", err)
	}
	if len(raw) > maxInstructions {
		return nil, fmt.Errorf("confine: the filter has %d instructions, the kernel takes %d", len(raw), maxInstructions)
	}
	return &Filter{raw: raw}, nil
}

// maxInstructions is BPF_MAXINSNS (linux/bpf_common.h).
const maxInstructions = 4096

// search expects the call number in the accumulator. Both halves end in
// returns, so nothing falls through.
func search(segs []segment) []bpf.Instruction {
	if len(segs) == 1 {
		return segs[0].do
	}
	mid := len(segs) / 2
	left, right := search(segs[:mid]), search(segs[mid:])
	var out []bpf.Instruction
	// Conditional jumps reach 255 instructions; longer ways need a plain jump.
	if len(left) <= 255 {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: segs[mid].first, SkipTrue: uint8(len(left))}) // #nosec G115 -- bounded
	} else {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: segs[mid].first, SkipFalse: 1}, bpf.Jump{Skip: uint32(len(left))}) // #nosec G115 -- bounded by the program
	}
	return append(append(out, left...), right...)
}

// lowIn allows the call when the low 32 bits of argument i are one of vals.
func lowIn(i int, vals []uint32, otherwise block) block {
	b := block{bpf.LoadAbsolute{Off: argLow(i), Size: 4}}
	for n, v := range vals {
		b = append(b, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(vals) - n - 1 + len(otherwise))}) // #nosec G115 -- a handful
	}
	return append(append(b, otherwise...), bpf.RetConstant{Val: retAllow})
}

// maskedIn goes on behind itself when the bits of argument i that mask has are one
// of vals, and else does otherwise, which returns.
func maskedIn(i int, mask uint32, vals []uint32, otherwise block) block {
	b := block{load(i), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask}}
	for n, v := range vals {
		b = append(b, equal(v, len(vals)-n-1+len(otherwise)))
	}
	return append(b, otherwise...)
}

// lowNotIn refuses the call when the low 32 bits of argument i are one of vals.
func lowNotIn(i int, vals []uint32, e unix.Errno) block {
	b := block{bpf.LoadAbsolute{Off: argLow(i), Size: 4}}
	for n, v := range vals {
		b = append(b, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(vals) - n)}) // #nosec G115 -- a handful
	}
	return append(append(b, bpf.RetConstant{Val: retAllow}), errno(e)...)
}

// lowClear refuses the call when argument i has any bit of mask.
func lowClear(i int, mask uint32, e unix.Errno) block {
	return append(block{
		bpf.LoadAbsolute{Off: argLow(i), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: mask, SkipTrue: 1},
		bpf.RetConstant{Val: retAllow},
	}, errno(e)...)
}

// write adds the installation to a child's script. The child needs
// no_new_privs or CAP_SYS_ADMIN.
func (f *Filter) write(s *forked.Script) {
	raw := f.Marshal()
	prog := &unix.SockFprog{Len: uint16(len(f.raw)), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(raw)))} // #nosec G103 G115 -- the kernel's form, at most 4096
	s.Call("install the seccomp filter", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, unsafe.Pointer(prog))       // #nosec G103 -- the call's own form
}

// InstallAll puts the filter on every thread of the process.
func (f *Filter) InstallAll() error { return f.install(unix.SECCOMP_FILTER_FLAG_TSYNC) }

func (f *Filter) install(flags uintptr) error {
	if len(f.raw) == 0 {
		return errors.New("confine: an empty filter")
	}
	ins := make([]unix.SockFilter, len(f.raw))
	for i, r := range f.raw {
		ins[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(ins)), Filter: &ins[0]}                                                   // #nosec G115 -- at most 4096
	got, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog))) // #nosec G103 -- the call's own form
	runtime.KeepAlive(ins)
	if e != 0 {
		return fmt.Errorf("confine: install the seccomp filter: %w", e)
	}
	if got != 0 {
		return fmt.Errorf("confine: install the seccomp filter: thread %d cannot take it", got)
	}
	return nil
}

func load(i int) bpf.Instruction { return bpf.LoadAbsolute{Off: argLow(i), Size: 4} }

func equal(v uint32, skip int) bpf.Instruction {
	return bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(skip)} // #nosec G115 -- a handful
}

func jump(skip int) bpf.Instruction { return bpf.Jump{Skip: uint32(skip)} } // #nosec G115 -- a handful
