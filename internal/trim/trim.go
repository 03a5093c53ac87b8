// Package trim gives memory back that a program does not need while it waits:
// what a start has left behind, in programs that start once and then wait for
// weeks, one or more of them for each agent of a host.
//
// It is for a moment at which nothing is to be done: collecting takes some
// milliseconds of a processor, and what is used again must be mapped again, a
// fault for each sixteen pages of the page cache.
package trim

import (
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AfterStart is when a program that was just started gives back what its start
// left behind. It is beyond what the start of a whole team takes, which needs
// the processors for something better.
const AfterStart = 10 * time.Second

// Memory gives back garbage, and the pages of the program's own file. Safe for
// concurrent use.
func Memory() {
	debug.FreeOSMemory()
	// Without it the process works as well, and holds more.
	_ = program()
}

// Started calls Memory once, after AfterStart. Stop stops it.
func Started() (stop func()) {
	t := time.AfterFunc(AfterStart, Memory)
	return func() { t.Stop() }
}

// Starting lets garbage gather until the start is over: there is little of it, and
// what would be collected is given back whole then. From then on percent is how
// much may gather ([debug.SetGCPercent]). Stop stops it.
func Starting(percent int) (stop func()) {
	debug.SetGCPercent(startGarbage)
	t := time.AfterFunc(AfterStart, func() {
		debug.SetGCPercent(percent)
		Memory()
	})
	return func() { t.Stop() }
}

// startGarbage is the garbage that may gather in a start, in percent of what is in
// use, or of 4 MB if that is more.
const startGarbage = 400

// program lets go of the pages of the program's file that nobody can write:
// code, constants and tables. They are those of the page cache, unchanged, so
// that nothing is lost or written: what is used again is mapped again
// (MADV_DONTNEED of a file mapping, madvise(2)). Most of them were used by the
// start alone.
func program() error {
	parts, err := readOnlyParts()
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, p.start, p.size, unix.MADV_DONTNEED); errno != 0 {
			return errno
		}
	}
	return nil
}

// part is a piece of this process's memory, whole pages.
type part struct{ start, size uintptr }

// header is Elf64_Phdr, of elf(5).
type header struct {
	kind, flags              uint32
	offset, vaddr, paddr     uint64
	fileSize, memSize, align uint64
}

// Of elf(5) and getauxval(3).
const (
	ptLoad, ptPhdr           = 1, 6
	pfWrite                  = 2
	atPhdr, atPhent, atPhnum = 3, 4, 5
)

// readOnlyParts finds the loaded segments of this program that are not
// writable, by its own headers in memory, where the kernel says they are
// (getauxval(3)): a confined program may have no /proc to read.
func readOnlyParts() ([]part, error) {
	aux, err := unix.Auxv()
	if err != nil {
		return nil, err
	}
	var at, size, count uintptr
	for _, kv := range aux {
		switch kv[0] {
		case atPhdr:
			at = kv[1]
		case atPhent:
			size = kv[1]
		case atPhnum:
			count = kv[1]
		}
	}
	if at == 0 || size != unsafe.Sizeof(header{}) {
		return nil, unix.ENOEXEC
	}
	headers := unsafe.Slice((*header)(unsafe.Add(nil, at)), count) // #nosec G103 -- where the kernel mapped them, for the life of the process
	return partsOf(headers, at, uintptr(unix.Getpagesize()))
}

// partsOf gives the read-only segments of a program whose headers lie at at.
func partsOf(headers []header, at, page uintptr) ([]part, error) {
	var out []part
	moved, known := uintptr(0), false // how far from where the file says
	for _, h := range headers {
		if h.kind == ptPhdr {
			moved, known = at-uintptr(h.vaddr), true
		}
	}
	if !known {
		return nil, unix.ENOEXEC
	}
	for _, h := range headers {
		// A segment whose end is not in the file has pages of its own there.
		if h.kind != ptLoad || h.flags&pfWrite != 0 || h.memSize != h.fileSize {
			continue
		}
		start := moved + uintptr(h.vaddr)
		end := (start + uintptr(h.memSize) + page - 1) &^ (page - 1)
		start &^= page - 1
		out = append(out, part{start, end - start})
	}
	return out, nil
}
