// Package forked runs a list of system calls in a new process, between fork
// and exec, without a program of its own for that.
//
// The usual way into a container is a second stage: a program that the child
// executes first, which mounts, confines itself, and executes the command. Its
// start is the largest part of a container's; a Go program's is a millisecond.
// Here the parent writes down beforehand, as a [Script], what such a program
// would do. The child, a copy of the parent, carries it out and executes the
// command. It is the parent's code with the parent's memory, but no line of it
// is the container's; with exec the copy is gone. When the child has changed
// its user id, the kernel lets nobody look into it (it is not dumpable:
// PR_SET_DUMPABLE(2const)) until then.
//
// # What a script can do
//
// System calls with arguments that are known beforehand; a result that is kept
// in a [Var] and is an argument later; a check that a buffer holds a text; an
// exec. Everything else is the parent's, before or after. The first call that
// fails ends the child with status 125: there is no way past a failed step.
//
// # Waiting
//
// A child that waits for its command would hold a copy of the parent's heap:
// its exec has to take that apart, and the parent has to copy each page when it
// writes to it, both while somebody waits. So a script can end with
// [Script.Then]: the child unmaps the copy and goes on with a few steps that lie
// elsewhere ([NewRest]). The parent takes its own faults early ([OwnMemory]).
//
// # Reports
//
// The child writes records of eight bytes to its status descriptor: index of a
// step and errno (two native int32), or the mark of [Script.Mark], which has
// the index -1. The descriptor closes at exec. [Script.ReadMark]
// and [Script.ReadExec] turn records into errors.
//
// # Why this is safe in Go
//
// After fork only one thread exists, and the runtime's locks are in whatever
// state they were. So the child runs one function that never grows its stack,
// allocates nothing, writes no Go pointer and makes raw system calls only, as
// syscall.forkAndExecInChild does, with the runtime's own hooks around it.
package forked

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Var holds a descriptor, or another small result, of a call in the child.
type Var struct{ v int32 }

// Set gives it a value before the fork.
func (v *Var) Set(n int32) { v.v = n }

// Script is a list of steps. The zero value is empty. It is built once, by one
// goroutine, and may then be forked any number of times until it is forgotten.
type Script struct {
	steps []step
	names []name
	keep  []any // what the arguments point to

	marked  bool    // a mark was read: its child has come so far
	rest    *Script // what follows in little memory: see Then
	outside []byte  // of a rest: where it lies
}

// name is what errors call a step.
type name struct {
	what string
	exec bool
}

type kind uint8

const (
	kindCall kind = iota
	kindHolds
	kindExec
)

// step is one step in a form that needs no memory but its own.
type step struct {
	kind     kind
	loadAt   int8 // argument that takes *load
	nr       uintptr
	args     [6]uintptr
	load     *int32
	save     *int32  // takes the result
	least    uintptr // the smallest good result
	leastVar *int32  // the same, when it comes from an earlier call
	allow    [3]syscall.Errno

	text, want []byte // kindHolds: text[:*load] must hold want
	room       *words // kindExec
}

// Option changes one step.
type Option func(*step)

// Allow lists errors that are fine: at most three.
func Allow(errs ...syscall.Errno) Option {
	return func(s *step) { copy(s.allow[:], errs) }
}

// Save keeps the result.
func Save(v *Var) Option { return func(s *step) { s.save = &v.v } }

// AtLeast refuses smaller results, a read of nothing for one.
func AtLeast(n int) Option {
	return func(s *step) { s.least = uintptr(n) } // #nosec G115 -- a count
}

// AtLeastVar refuses results smaller than v, and everything when v is below 0.
func AtLeastVar(v *Var) Option {
	return func(s *step) { s.leastVar = &v.v }
}

// Call adds a system call. what completes "cannot …" and names it in errors.
// Arguments are integers, a *Var, a string, a []byte, or an unsafe.Pointer to
// memory that the script keeps; [Option]s may follow them.
func (s *Script) Call(what string, nr uintptr, args ...any) {
	st := step{nr: nr, loadAt: -1}
	i := 0
	for _, a := range args {
		switch a := a.(type) {
		case Option:
			a(&st)
			continue
		case int:
			st.args[i] = uintptr(a) // #nosec G115 -- sign extension is meant: AT_FDCWD
		case uint32:
			st.args[i] = uintptr(a)
		case uint64:
			st.args[i] = uintptr(a)
		case uintptr:
			st.args[i] = a
		case string:
			st.args[i] = uintptr(s.hold(append([]byte(a), 0)))
		case []byte:
			st.args[i] = uintptr(s.hold(a))
		case unsafe.Pointer:
			s.pointsTo(a, what)
			st.args[i] = uintptr(a)
		case *Var:
			s.pointsTo(unsafe.Pointer(a), what) // #nosec G103 -- an address to look at
			st.loadAt, st.load = int8(i), &a.v  // #nosec G115 -- below 6
		default:
			panic(fmt.Sprintf("forked: argument %T of %q", a, what))
		}
		i++
	}
	s.add(what, st)
}

// hold keeps bytes that an argument points to.
func (s *Script) hold(b []byte) unsafe.Pointer {
	if s.outside != nil {
		return s.placeBytes(b)
	}
	s.keep = append(s.keep, b)
	return unsafe.Pointer(unsafe.SliceData(b)) // #nosec G103 -- kept above
}

// pointsTo keeps what an argument points to.
func (s *Script) pointsTo(p unsafe.Pointer, what string) {
	if s.outside != nil {
		s.outsideOnly(p, what)
		return
	}
	s.keep = append(s.keep, p)
}

func (s *Script) add(what string, st step) {
	if s.outside != nil {
		for _, v := range []*int32{st.save, st.leastVar} {
			if v != nil {
				s.outsideOnly(unsafe.Pointer(v), what) // #nosec G103 -- an address to look at
			}
		}
		r := s.own()
		if r.n == maxRestSteps || st.kind == kindHolds {
			panic("forked: the rest of a script has too many steps, or one that needs more memory")
		}
		r.steps[r.n] = st
		r.n++
		s.names = append(s.names, name{what, st.nr == unix.SYS_EXECVE})
		return
	}
	s.steps, s.names = append(s.steps, st), append(s.names, name{what, st.nr == unix.SYS_EXECVE})
}

// Holds adds the check that the first n bytes of text hold want.
func (s *Script) Holds(what string, text []byte, n *Var, want string) {
	s.add(what, step{kind: kindHolds, text: text, load: &n.v, want: []byte(want)})
}

// Exec adds the change to the folder of the command in r and its execution: of
// the first of its paths that is there and may be executed.
func (s *Script) Exec(r *Room) {
	s.add("enter the command's folder", step{kind: kindExec, room: r.words(), nr: syscall.SYS_CHDIR})
	s.add("run the command", step{kind: kindExec, room: r.words(), nr: syscall.SYS_EXECVE})
}

// mark is the index of a record that reports no failure.
const mark = -1

const recordSize = 8

func record(index int32, e syscall.Errno) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(index)) // #nosec G115 -- its bits
	return binary.NativeEndian.AppendUint32(b, uint32(e))     // #nosec G115 -- an errno
}

// Mark adds a record on the descriptor status that says: so far all is well.
func (s *Script) Mark(status int) {
	s.Call("report", syscall.SYS_WRITE, status, record(mark, 0), recordSize)
}

// Append adds the steps of another script, and its rest.
func (s *Script) Append(o *Script) {
	s.steps, s.names, s.keep = append(s.steps, o.steps...), append(s.names, o.names...), append(s.keep, o.keep...)
	s.rest = o.rest
}

// Forget frees what a fork needs. Records can still be explained.
func (s *Script) Forget() {
	s.steps, s.keep = nil, nil
	if s.rest != nil {
		s.rest.Forget()
	}
	if s.outside != nil {
		_ = unix.Munmap(s.outside) // fails for memory only that is none of ours
		s.outside = nil
	}
}

// ErrSilent means that the child ended without a word: it was killed, or its
// memory limit is too small to start.
var ErrSilent = errors.New("the child ended without a word (killed, or its memory limit is too small to start)")

// ReadMark reads one record. It is the step's failure, if it tells of one.
func (s *Script) ReadMark(r io.Reader) error {
	var b [recordSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return ErrSilent
		}
		return fmt.Errorf("forked: status: %w", err)
	}
	err := s.explain(b[:])
	s.marked = s.marked || err == nil
	return err
}

// ReadExec reads until exec has closed the other end. A child that is killed
// after its last mark is told from one that executes by how it ends.
func (s *Script) ReadExec(r io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(r, 1<<10))
	if err != nil {
		return fmt.Errorf("forked: status: %w", err)
	}
	if len(raw) == 0 && !s.marked {
		return ErrSilent
	}
	for ; len(raw) >= recordSize; raw = raw[recordSize:] {
		if err := s.explain(raw[:recordSize]); err != nil {
			return err
		}
	}
	return nil
}

// StepError says which step failed.
type StepError struct {
	What string
	Exec bool // it was the exec
	Err  syscall.Errno
}

func (e *StepError) Error() string {
	if e.Err == 0 {
		return "cannot " + e.What
	}
	return "cannot " + e.What + ": " + e.Err.Error()
}

func (e *StepError) Unwrap() error { return e.Err }

func (s *Script) explain(rec []byte) error {
	i := int32(binary.NativeEndian.Uint32(rec)) // #nosec G115 -- its bits
	e := syscall.Errno(binary.NativeEndian.Uint32(rec[4:]))
	switch {
	case i == mark:
		return nil
	case i < 0:
		return fmt.Errorf("forked: a record names step %d", i)
	}
	n, ok := s.nameOf(int(i))
	if !ok {
		return fmt.Errorf("forked: a record names step %d, which the script does not have", i)
	}
	return &StepError{What: n.what, Exec: n.exec, Err: e}
}

// nameOf counts on into the rest, which begins with the giving back.
func (s *Script) nameOf(i int) (name, bool) {
	if i < len(s.names) {
		return s.names[i], true
	}
	i -= len(s.names)
	switch {
	case s.rest == nil || i > len(s.rest.names):
		return name{}, false
	case i == 0:
		return name{what: "give the starter's memory back"}, true
	}
	return s.rest.names[i-1], true
}
