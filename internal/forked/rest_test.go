package forked

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// waiting forks a child that gives its memory back and waits for a byte on
// its descriptor 0, which is also its status; then it does what more adds.
func waiting(t *testing.T, more func(r *Script, status int)) (s *Script, pid int, ours *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours = os.NewFile(uintptr(fds[0]), "ours")
	t.Cleanup(func() { _ = ours.Close() })
	r, err := NewRest()
	if err != nil {
		t.Fatal(err)
	}
	s = &Script{}
	t.Cleanup(s.Forget)
	s.Call("close the parent's end", unix.SYS_CLOSE, fds[0])
	s.Then(r)
	in := Place[[8]byte](r)
	r.Mark(fds[1])
	r.Call("wait", unix.SYS_READ, fds[1], addressOf(in), 1, AtLeast(1))
	more(r, fds[1])
	pid, pidfd, err := Fork(s, fds[1], 0, -1)
	_ = unix.Close(fds[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pidfd) })
	if err := s.ReadMark(ours); err != nil {
		t.Fatal(err)
	}
	return s, pid, ours
}

func wait(t *testing.T, pid int) int {
	t.Helper()
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	return ws.ExitStatus()
}

// anonymousOf reads how much private memory a process holds, in KiB.
func anonymousOf(t *testing.T, pid int) (kib int) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if _, err := fmt.Sscanf(line, "Anonymous: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatalf("no line Anonymous in %q", raw)
	return 0
}

func TestAChildThatWaitsHoldsLittleOfItsParent(t *testing.T) {
	ballast := bytes.Repeat([]byte{1}, 32<<20)
	room := shell(t, []string{"/bin/sh"}, `[ "$A" = b ] && exit 7`)
	s, pid, ours := waiting(t, func(r *Script, _ int) { r.Exec(room) })
	if kib := anonymousOf(t, pid); kib > 4<<10 {
		t.Errorf("the waiting child holds %d KiB", kib)
	}
	if own := anonymousOf(t, os.Getpid()); own < len(ballast)>>10 {
		t.Errorf("control: the parent itself holds %d KiB only", own)
	}
	if ballast[len(ballast)/2] != 1 {
		t.Error("the parent's own memory has changed")
	}
	if _, err := ours.Write([]byte{'g'}); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadExec(ours); err != nil {
		t.Error(err)
	}
	if code := wait(t, pid); code != 7 {
		t.Errorf("exit %d", code)
	}
}

func TestAFailureInTheRestIsNamed(t *testing.T) {
	s, pid, ours := waiting(t, func(r *Script, _ int) {
		r.Call("make a folder in nowhere", unix.SYS_MKDIRAT, unix.AT_FDCWD, "/nonexistent/a", 0)
		r.Call("not come here", unix.SYS_EXIT_GROUP, 0)
	})
	if _, err := ours.Write([]byte{'g'}); err != nil {
		t.Fatal(err)
	}
	err := s.ReadExec(ours)
	var step *StepError
	if !errors.As(err, &step) || step.What != "make a folder in nowhere" || !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	if code := wait(t, pid); code != 125 {
		t.Errorf("exit %d", code)
	}
}

func TestTheRestTakesNoMemoryOfTheHeap(t *testing.T) {
	for name, add := range map[string]func(r *Script){
		"a variable":       func(r *Script) { r.Call("close it", unix.SYS_CLOSE, &Var{}) },
		"a saved result":   func(r *Script) { r.Call("dup it", unix.SYS_DUP, 0, Save(&Var{})) },
		"a structure":      func(r *Script) { r.Call("read", unix.SYS_READ, 0, addressOf(&[8]byte{}), 8) },
		"a text to search": func(r *Script) { r.Holds("hold it", []byte("text"), Place[Var](r), "e") },
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewRest()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Forget()
			defer func() {
				if recover() == nil {
					t.Error("accepted")
				}
			}()
			add(r)
		})
	}
}

func TestOwnMemoryTakesTheFaultsOfAFork(t *testing.T) {
	faults := func(own bool) int64 {
		ballast := bytes.Repeat([]byte{1}, 16<<20)
		_, pid, ours := waiting(t, func(*Script, int) {})
		defer wait(t, pid)
		defer func() { _ = ours.Close() }() // ends the child
		if own {
			if err := OwnMemory(); err != nil {
				t.Fatal(err)
			}
		}
		before := minorFaults(t)
		for i := 0; i < len(ballast); i += os.Getpagesize() {
			ballast[i]++
		}
		return minorFaults(t) - before
	}
	pages := int64(16 << 20 / os.Getpagesize())
	if n := faults(false); n < pages/2 {
		t.Skipf("%d faults for %d pages after a fork: this kernel maps more than a page at once", n, pages)
	}
	if n := faults(true); n > pages/8 {
		t.Errorf("%d faults for %d pages", n, pages)
	}
}

func minorFaults(t *testing.T) int64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Minflt
}

func TestWithoutCutsWholePagesOut(t *testing.T) {
	const p = 4096
	for name, c := range map[string]struct {
		k    span
		want []span
	}{
		"before":           {span{0, p}, []span{{2 * p, 8 * p}}},
		"behind":           {span{8 * p, 9 * p}, []span{{2 * p, 8 * p}}},
		"the middle":       {span{4*p + 1, 5 * p}, []span{{2 * p, 4 * p}, {5 * p, 8 * p}}},
		"the beginning":    {span{p, 3*p - 1}, []span{{3 * p, 8 * p}}},
		"the end":          {span{7 * p, 9 * p}, []span{{2 * p, 7 * p}}},
		"all":              {span{0, 9 * p}, nil},
		"a part of a page": {span{2*p + 1, 2*p + 2}, []span{{3 * p, 8 * p}}},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getpagesize() != p {
				t.Skip("the numbers are of pages of 4 KiB")
			}
			if got := without([]span{{2 * p, 8 * p}}, c.k); !slices.Equal(got, c.want) {
				t.Errorf("%x", got)
			}
		})
	}
}

func TestOwnMapsAreRead(t *testing.T) {
	raw, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseMaps(raw)
	if err != nil || len(all) == 0 {
		t.Fatalf("%v, %d ranges", err, len(all))
	}
	heap := new([64]byte)
	at := uintptr(addressOf(heap))
	if !slices.ContainsFunc(all, func(s span) bool { return s.from <= at && at < s.to }) {
		t.Errorf("the heap (%x) is in none of %x", at, all)
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add([]byte("00400000-00401000 rw-p 00000000 00:00 0 \n7ffc0000-7ffd0000 rw-p 00000000 00:00 0                          [stack]\n"))
	f.Add([]byte("00400000-00401000 r-xp 00000000 fd:00 17 /bin/a b\n"))
	f.Add([]byte("00401000-00400000 rw-p 0 0 0\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := parseMaps(raw)
		if err != nil {
			return
		}
		for _, s := range all {
			if s.from >= s.to {
				t.Errorf("%q gives the range %x-%x", raw, s.from, s.to)
			}
		}
	})
}

func addressOf[T any](t *T) unsafe.Pointer { return unsafe.Pointer(t) }
