package forked

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bounds of a rest.
const (
	maxRestSteps = 16
	maxSpans     = 128
	restRoom     = 4 << 10 // bytes for arguments
)

// span is a range of addresses.
type span struct{ from, to uintptr }

// rest is what a child needs once it has given the parent's memory back. It
// lies outside the Go heap and points to nothing in there.
type rest struct {
	failed [2]int32 // the record of a failure
	base   int32    // index of the giving back in records
	steps  [maxRestSteps]step
	n      int
	spans  [maxSpans]span // what is given back
	nSpans int

	room [restRoom]byte
	used uintptr
}

const restSize = unsafe.Sizeof(rest{})

// NewRest makes the empty end of a script: what a child does after
// [Script.Then], when nothing of its copy of the parent's heap is left. Its
// arguments are copied; a *Var and an unsafe.Pointer among them must come from
// [Place]. [Script.Forget] frees it in the parent.
func NewRest() (*Script, error) {
	mem, err := unix.Mmap(-1, 0, int(restSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("forked: memory for the rest: %w", err)
	}
	return &Script{outside: mem}, nil
}

func (s *Script) own() *rest { return (*rest)(unsafe.Pointer(unsafe.SliceData(s.outside))) } // #nosec G103 -- of that size, on a page's edge

// Place gives zeroed memory in a rest, for a T that points nowhere else.
func Place[T any](s *Script) *T {
	var t T
	return (*T)(s.place(unsafe.Sizeof(t), unsafe.Alignof(t)))
}

func (s *Script) place(size, align uintptr) unsafe.Pointer {
	r := s.own()
	at := (r.used + align - 1) &^ (align - 1)
	if at+size > restRoom {
		panic("forked: the rest of a script takes too much memory")
	}
	r.used = at + size
	return unsafe.Pointer(&r.room[at]) // #nosec G103 -- inside room, as checked
}

func (s *Script) placeBytes(b []byte) unsafe.Pointer {
	p := s.place(uintptr(len(b)), 1)
	copy(unsafe.Slice((*byte)(p), len(b)), b) // #nosec G103 -- placed above
	return p
}

// outsideOnly panics when p is not in the memory of the rest.
func (s *Script) outsideOnly(p unsafe.Pointer, what string) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(s.outside))) // #nosec G103 -- a number to compare
	if at := uintptr(p); at < from || at >= from+restSize {
		panic(fmt.Sprintf("forked: %q points to memory that the child has given back", what))
	}
}

// Then ends the script: the child gives all memory back that it shares with
// the parent, and goes on with r. A child that waits would otherwise hold a
// copy of the parent's whole heap, which its exec has to take apart, and every
// page of which the parent has to copy when it writes to it.
func (s *Script) Then(r *Script) { s.rest = r }

// prepareRest writes down what is to be given back: all private memory without a
// file, but r itself and the rooms that its steps use.
func (s *Script) prepareRest(steps int) (*rest, error) {
	if s.rest == nil {
		return nil, nil
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(s.rest.outside))) // #nosec G103 -- a number to compare
	keep := []span{{from, from + restSize}}
	r := s.rest.own()
	for i := range r.steps[:r.n] {
		if room := r.steps[i].room; room != nil {
			at := uintptr(unsafe.Pointer(room)) // #nosec G103 -- a number to compare
			keep = append(keep, span{at, at + RoomSize})
		}
	}
	all, err := anonymous()
	if err != nil {
		return nil, err
	}
	for _, k := range keep {
		all = without(all, k)
	}
	if len(all) > maxSpans {
		all = all[:maxSpans] // the others stay, and cost time only
	}
	r.base, r.nSpans = int32(steps), copy(r.spans[:], all) // #nosec G115 -- a count
	return r, nil
}

// without cuts k, whose ends are rounded to pages, out of all.
func without(all []span, k span) []span {
	page := uintptr(os.Getpagesize()) // #nosec G115 -- a size
	k.from, k.to = k.from&^(page-1), (k.to+page-1)&^(page-1)
	var out []span
	for _, s := range all {
		if s.to <= k.from || k.to <= s.from {
			out = append(out, s)
			continue
		}
		if s.from < k.from {
			out = append(out, span{s.from, k.from})
		}
		if k.to < s.to {
			out = append(out, span{k.to, s.to})
		}
	}
	return out
}

// anonymous lists this process's private writable memory without a file, but
// the stack of the first thread.
func anonymous() ([]span, error) {
	raw, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, fmt.Errorf("forked: this process's memory: %w", err)
	}
	return parseMaps(raw)
}

// parseMaps reads proc_pid_maps(5): lines of "from-to perms offset device
// inode path".
func parseMaps(raw []byte) ([]span, error) {
	var out []span
	for line := range bytes.Lines(raw) {
		var s span
		var perms, offset, device string
		var inode uint64
		if _, err := fmt.Sscanf(string(line), "%x-%x %s %s %s %d", &s.from, &s.to, &perms, &offset, &device, &inode); err != nil {
			return nil, fmt.Errorf("forked: /proc/self/maps: line %q: %w", line, err)
		}
		if s.from >= s.to {
			return nil, fmt.Errorf("forked: /proc/self/maps: line %q: an empty range", line)
		}
		// The first stack holds what ps shows of a process.
		if inode == 0 && perms == "rw-p" && !bytes.HasSuffix(line, []byte("[stack]\n")) {
			out = append(out, s)
		}
	}
	return out, nil
}

// What stays of the stack around a frame of fork: its callees below, which
// never grow it, and its own arguments above.
const (
	stackBelow = 8 << 10
	stackAbove = 4 << 10
)

// shed gives the memory back, but for the stack around sp.
//
//go:nosplit
//go:norace
func shed(r *rest, sp uintptr) syscall.Errno {
	// The largest pages that Linux has on amd64 and arm64 are of 64 KiB.
	const page = 64 << 10
	from, to := (sp-stackBelow)&^(page-1), (sp+stackAbove+page-1)&^(page-1)
	for i := range r.spans {
		if i >= r.nSpans {
			break
		}
		s := &r.spans[i]
		if e := unmap(s.from, min(s.to, from)); e != 0 {
			return e
		}
		if e := unmap(max(s.from, to), s.to); e != 0 {
			return e
		}
	}
	return 0
}

//go:nosplit
//go:norace
func unmap(from, to uintptr) syscall.Errno {
	if from >= to {
		return 0
	}
	_, _, e := syscall.RawSyscall(syscall.SYS_MUNMAP, from, to-from, 0)
	return e
}
