package confine

import (
	"embed"
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/net/bpf"
)

// Every filter is compiled when Bulkhead is built, not when a program starts:
// each launcher of an agent needs four, and compiling one takes a millisecond.
// The files are the kernel's struct sock_filter; TestFiltersAreThoseOfTheRules
// compares them with the rules, and writes them with -update.
//
//go:embed filters
var filters embed.FS

// The filters that are no role's.
const (
	filterCell       = "cell"
	filterCellPtrace = "cell-ptrace"
	filterSeal       = "seal"
)

// instruction is the size of struct sock_filter (linux/filter.h).
const instruction = 8

func compiled(name string) (*Filter, error) {
	raw, err := filters.ReadFile("filters/" + runtime.GOARCH + "/" + name + ".bpf")
	if err != nil {
		return nil, fmt.Errorf("confine: no seccomp filter %q for %s: %w", name, runtime.GOARCH, err)
	}
	return parseFilter(raw)
}

func parseFilter(raw []byte) (*Filter, error) {
	if len(raw) == 0 || len(raw)%instruction != 0 || len(raw) > maxInstructions*instruction {
		return nil, fmt.Errorf("confine: %d bytes are no seccomp filter", len(raw))
	}
	f := &Filter{raw: make([]bpf.RawInstruction, len(raw)/instruction)}
	for i := range f.raw {
		b := raw[i*instruction:]
		// Both architectures that we build for are little-endian.
		f.raw[i] = bpf.RawInstruction{Op: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:])}
	}
	return f, nil
}
