package forked

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// child forks s with one descriptor, the status, and gives what was reported
// and the exit code.
func child(t *testing.T, add func(s *Script, status int), room *Room) (s *Script, code int, report error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	status := int(w.Fd())
	s = &Script{}
	add(s, status)
	if room != nil {
		s.Mark(status)
		s.Exec(room)
	}
	pid, pidfd, err := Fork(s, status, 0, -1)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	report = s.ReadExec(r)
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(pidfd); err != nil {
		t.Error("no pidfd:", err)
	}
	return s, ws.ExitStatus(), report
}

func shell(t *testing.T, paths []string, script string) *Room {
	t.Helper()
	room, err := NewRoom()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = room.Close() })
	raw, err := Encode(room.Address(), paths, []string{"sh", "-c", script}, []string{"A=b"}, "/usr")
	if err != nil {
		t.Fatal(err)
	}
	room.Put(raw)
	return room
}

func TestTheCommandRunsInItsFolderWithItsEnvironment(t *testing.T) {
	room := shell(t, []string{"/nonexistent/sh", "/etc/passwd", "/bin/sh"}, `[ "$A" = b ] && [ "$PWD" = /usr ] && exit 7`)
	if _, code, err := child(t, func(*Script, int) {}, room); err != nil || code != 7 {
		t.Errorf("%v, exit %d", err, code)
	}
}

func TestNothingRunsAfterAStepThatFailed(t *testing.T) {
	room := shell(t, []string{"/bin/sh"}, "exit 0")
	text, n := []byte("CapEff:\t0\n"), &Var{}
	n.Set(int32(len(text)))
	for name, c := range map[string]struct {
		add  func(s *Script, status int)
		want syscall.Errno
	}{
		"an error":                   {func(s *Script, _ int) { s.Call("close it", unix.SYS_CLOSE, 999) }, unix.EBADF},
		"another error than allowed": {func(s *Script, _ int) { s.Call("close it", unix.SYS_CLOSE, 999, Allow(unix.EIO)) }, unix.EBADF},
		"a result that is too small": {func(s *Script, _ int) { s.Call("get it", unix.SYS_UMASK, 0, AtLeast(0o1000)) }, 0},
		"a text that is not there":   {func(s *Script, _ int) { s.Holds("find it", text, n, "CapEff:\t00") }, 0},
		"a descriptor that is none":  {func(s *Script, _ int) { v := &Var{}; v.Set(-1); s.Call("use it", unix.SYS_DUP, v) }, unix.EBADF},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := child(t, c.add, room)
			var step *StepError
			if !errors.As(err, &step) || step.Err != c.want || step.Exec || code != 125 {
				t.Errorf("%v, exit %d", err, code)
			}
		})
	}
}

func TestResultsAreArgumentsOfLaterCalls(t *testing.T) {
	room := shell(t, []string{"/bin/sh"}, "exit 0")
	fd, n, text := &Var{}, &Var{}, make([]byte, 4096)
	_, code, err := child(t, func(s *Script, _ int) {
		s.Call("open", unix.SYS_OPENAT, unix.AT_FDCWD, "/proc/self/status", unix.O_RDONLY, 0, Save(fd))
		s.Call("read", unix.SYS_READ, fd, text, len(text), Save(n), AtLeast(1))
		s.Call("close", unix.SYS_CLOSE, fd)
		s.Holds("find", text, n, "\nThreads:\t1\n")
		s.Call("close again", unix.SYS_CLOSE, fd, Allow(unix.EBADF))
	}, room)
	if err != nil || code != 0 {
		t.Errorf("%v, exit %d", err, code)
	}
}

func TestAnExecThatFailsIsNamed(t *testing.T) {
	room := shell(t, []string{"/nonexistent"}, "")
	_, _, err := child(t, func(*Script, int) {}, room)
	var step *StepError
	if !errors.As(err, &step) || !step.Exec || step.Err != unix.ENOENT {
		t.Error(err)
	}
}

func TestAChildThatIsKilledIsSilent(t *testing.T) {
	_, _, err := child(t, func(s *Script, _ int) {
		v := &Var{}
		s.Call("who", unix.SYS_GETPID, Save(v))
		s.Call("end", unix.SYS_KILL, v, int(unix.SIGKILL))
	}, nil)
	if !errors.Is(err, ErrSilent) {
		t.Error(err)
	}
}

func TestCommandsThatCannotBeAreRefused(t *testing.T) {
	for name, argv := range map[string][]string{
		"a zero byte": {"a\x00b"},
		"too long":    {strings.Repeat("x", RoomSize)},
	} {
		if _, err := Encode(4096, []string{"/x"}, argv, nil, "/"); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// What lies in a room must never point outside of what was written.
func FuzzEncode(f *testing.F) {
	f.Add("/bin/sh", "sh", "A=b", "/")
	f.Add("", "", "", "")
	f.Fuzz(func(t *testing.T, path, arg, env, dir string) {
		const at = 1 << 20
		raw, err := Encode(at, []string{path}, []string{arg, arg}, []string{env}, dir)
		if err != nil {
			if !strings.Contains(path+arg+env+dir, "\x00") && len(path+arg+env+dir) < RoomSize/4 {
				t.Error(err)
			}
			return
		}
		word := func(i int) int {
			var n uint64
			for j := range 8 {
				n |= uint64(raw[8*i+j]) << (8 * j)
			}
			return int(n) // #nosec G115 -- checked by its use below
		}
		text := func(p int) string {
			s, _, ok := strings.Cut(string(raw[p-at:]), "\x00")
			if !ok {
				t.Error("a text has no end")
			}
			return s
		}
		argv, envp := (word(headArgv)-at)/8, (word(headEnv)-at)/8
		if text(word(headDir)) != dir || text(word(headSize/8)) != path || word(headSize/8+1) != 0 ||
			text(word(argv)) != arg || text(word(argv+1)) != arg || word(argv+2) != 0 || text(word(envp)) != env || word(envp+1) != 0 {
			t.Errorf("%q does not come back", []string{path, arg, env, dir})
		}
	})
}
