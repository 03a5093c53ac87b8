package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// exhaustKinds take more of something than a limit allows, no more than Take
// says, and give it back. "neighbour.work" is what somebody else does meanwhile.
func exhaustKinds() map[string]kind {
	return map[string]kind{
		"exhaust.memory":    {do: takeMemory, alone: true},
		"exhaust.processes": {do: takeProcesses, alone: true, starves: true},
		"exhaust.files":     {do: takeFiles, alone: true},
		"exhaust.disk":      {do: takeDisk, alone: true},
		"exhaust.inodes":    {do: takeInodes, alone: true},
		"exhaust.processor": {do: takeProcessor, alone: true},
		"neighbour.work":    {do: workOn, alone: true},
	}
}

// takeMemory lets a child touch Take bytes: the kernel ends it, or does not.
func takeMemory(t *trial) error {
	c := exec.Command("/proc/self/exe", childArg) // #nosec G204 -- itself
	c.Env = []string{"MODE=memory", "TAKE=" + strconv.FormatInt(t.Take, 10)}
	err := c.Run()
	var exit *exec.ExitError
	switch what := fmt.Sprintf("touch %d bytes of memory", t.Take); {
	case err == nil:
		t.step(what, nil)
		t.saw("has them all")
	case errors.As(err, &exit):
		ws, _ := exit.Sys().(syscall.WaitStatus)
		if ws.Signaled() && ws.Signal() == unix.SIGKILL {
			t.step(what, refused("SIGKILL"))
			return nil
		}
		if ws.ExitStatus() == childRefused {
			t.step(what, unix.ENOMEM)
			return nil
		}
		return err
	default:
		return err
	}
	return nil
}

// touchMemory is that child's part.
func touchMemory() {
	n, err := strconv.Atoi(os.Getenv("TAKE"))
	if err != nil {
		os.Exit(2)
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		os.Exit(childRefused)
	}
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 1
	}
	os.Exit(childAnswered)
}

// takeProcesses starts Take children and looks how many of them live.
func takeProcesses(t *trial) error {
	var ends []func() error
	var running []*exec.Cmd
	defer func() {
		for _, end := range ends {
			_ = end()
		}
	}()
	what := fmt.Sprintf("have %d children", t.Take)
	for range t.Take {
		c, end, err := spawn(nil, "")
		if err != nil {
			if n, ok := errnoOf(err); ok {
				t.step(what, n)
				return nil
			}
			return err
		}
		running, ends = append(running, c), append(ends, end)
	}
	for _, c := range running {
		// One that could not start its threads has ended (or is about to: the
		// wait is for its answer).
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == nil && info.Signo != 0 {
			t.step(what, unix.EAGAIN)
			return nil
		}
	}
	t.step(what, nil)
	t.saw("has them all")
	return nil
}

// takeFiles opens Take files.
func takeFiles(t *trial) error {
	var err error
	for n := int64(0); n < t.Take && err == nil; n++ {
		_, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) // they close with this process
	}
	if t.step(fmt.Sprintf("have %d open files", t.Take), err) {
		t.saw("has them all")
	}
	return nil
}

// takeDisk writes Take bytes into the first of Paths.
func takeDisk(t *trial) error {
	p := filepath.Join(t.Paths[0], t.name())
	err := writeBytes(p, t.Take)
	if t.step(fmt.Sprintf("write %d bytes", t.Take), err) {
		t.saw("wrote them all")
	}
	return os.Remove(p)
}

func writeBytes(path string, n int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) // #nosec G304 -- its own
	if err != nil {
		return err
	}
	block := make([]byte, 64<<10)
	for n > 0 && err == nil {
		_, err = f.Write(block[:min(n, int64(len(block)))])
		n -= int64(len(block))
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// takeInodes makes Take files in the first of Paths.
func takeInodes(t *trial) error {
	dir := filepath.Join(t.Paths[0], t.name())
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := makeFiles(dir, t.Take)
	if t.step(fmt.Sprintf("make %d files", t.Take), err) {
		t.saw("made them all")
	}
	return os.RemoveAll(dir)
}

func makeFiles(dir string, n int64) error {
	for i := range n {
		fd, err := unix.Open(filepath.Join(dir, strconv.FormatInt(i, 10)), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
	}
	return nil
}

// takeProcessor computes until it has used Take microseconds of a processor.
// Whether the kernel held it back, its cgroup says.
func takeProcessor(t *trial) error {
	burn(t.Take)
	t.step(fmt.Sprintf("use %d microseconds of a processor", t.Take), nil)
	t.saw("has used them")
	return nil
}

func burn(micros int64) {
	used := func() int64 {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // fails for no process that runs
		return u.Utime.Sec*1e6 + u.Utime.Usec + u.Stime.Sec*1e6 + u.Stime.Usec
	}
	for start, x := used(), 0; used()-start < micros; {
		for range 100_000 {
			x++
		}
	}
}

// rounds is how often a neighbour does its work.
const rounds = 4

// workOn does a little of everything, again and again, and says what failed and
// how long the slowest round took.
func workOn(t *trial) error {
	var slowest time.Duration
	for range rounds {
		begin := time.Now()
		for what, do := range map[string]func() error{
			"touch memory":   func() error { return touch(4 << 20) },
			"start a child":  startOne,
			"open files":     func() error { return openSome(64) },
			"write to disk":  func() error { return writeAndRemove(filepath.Join(t.Paths[0], t.name())) },
			"make files":     func() error { return makeAndRemove(filepath.Join(t.Paths[0], t.name()+"-d")) },
			"use processors": func() error { burn(2000); return nil },
		} {
			if err := do(); err != nil {
				t.step(what, err)
				t.saw("%s failed: %v", what, err)
				return nil
			}
		}
		slowest = max(slowest, time.Since(begin))
	}
	t.step(fmt.Sprintf("%d rounds of work", rounds), nil)
	t.saw("the slowest round took %d ms", slowest.Milliseconds())
	return nil
}

func touch(n int) error {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 1
	}
	return unix.Munmap(b)
}

func startOne() error {
	_, end, err := spawn(nil, "")
	if err != nil {
		return err
	}
	return end()
}

func openSome(n int) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	return nil
}

func writeAndRemove(path string) error {
	return errors.Join(writeBytes(path, 1<<20), os.Remove(path))
}

func makeAndRemove(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(makeFiles(dir, 32), os.RemoveAll(dir))
}
