package forked

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RoomSize bounds a command: execve(2) takes no more than 2 MiB with the
// default stack either.
const RoomSize = 3 << 20

// The words at the beginning of a room. The paths follow, up to a 0.
const (
	headArgv, headEnv, headDir = 0, 1, 2

	headSize = 3 * 8 // bytes
)

// words is a room as pointer-sized words.
type words [RoomSize / 8]uintptr

// Room is memory for one command, outside the Go heap. A child that is forked
// has it at the same address, so a command whose pointers were written for it
// here can be sent there. Untouched pages cost nothing.
type Room struct {
	mem     []byte
	address uintptr
}

// NewRoom maps the memory; Close unmaps it in this process.
func NewRoom() (*Room, error) {
	mem, err := unix.Mmap(-1, 0, RoomSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("forked: room for the command: %w", err)
	}
	return &Room{mem, uintptr(unsafe.Pointer(unsafe.SliceData(mem)))}, nil // #nosec G103 -- an address for the kernel
}

// Close frees the memory here; children keep theirs, and Address stays known.
func (r *Room) Close() error {
	if r.mem == nil {
		return nil
	}
	if err := unix.Munmap(r.mem); err != nil {
		return fmt.Errorf("forked: %w", err)
	}
	r.mem = nil
	return nil
}

// Address is where the room begins, in this process and its children.
func (r *Room) Address() uintptr { return r.address }

func (r *Room) words() *words { return (*words)(unsafe.Pointer(unsafe.SliceData(r.mem))) } // #nosec G103 -- of that size, on a page's edge

// Put writes a command into the room.
func (r *Room) Put(raw []byte) { copy(r.mem, raw) }

// Encode lays a command out for a room at address. The first of paths that can
// be executed is.
func Encode(address uintptr, paths, argv, env []string, dir string) ([]byte, error) {
	pointers := headSize + 8*(len(paths)+len(argv)+len(env)+3)
	size := pointers + len(dir) + 1
	for _, list := range [][]string{paths, argv, env} {
		for _, s := range list {
			size += len(s) + 1
		}
	}
	if size > RoomSize {
		return nil, fmt.Errorf("forked: the command with its environment takes %d bytes, more than %d", size, RoomSize)
	}
	out := make([]byte, pointers, size)
	at := headSize
	text := func(s string) (uint64, error) {
		for i := range len(s) {
			if s[i] == 0 {
				return 0, fmt.Errorf("forked: %q holds a zero byte", s)
			}
		}
		p := uint64(address) + uint64(len(out))
		out = append(append(out, s...), 0)
		return p, nil
	}
	for i, list := range [][]string{paths, argv, env} {
		if i > 0 {
			binary.NativeEndian.PutUint64(out[8*(i-1):], uint64(address)+uint64(at)) // #nosec G115 -- an offset
		}
		for _, s := range list {
			p, err := text(s)
			if err != nil {
				return nil, err
			}
			binary.NativeEndian.PutUint64(out[at:], p)
			at += 8
		}
		at += 8 // the null pointer at the end
	}
	p, err := text(dir)
	if err != nil {
		return nil, err
	}
	binary.NativeEndian.PutUint64(out[8*headDir:], p)
	return out, nil
}
