package threads

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine"
	"bulkhead/internal/prove/filter"
	"bulkhead/internal/thread"
)

// TestMain is also the child that is read: one of its threads has a filter, the
// others have none.
func TestMain(m *testing.M) {
	if os.Getenv("FILTERED_CHILD") == "" {
		os.Exit(m.Run())
	}
	f, err := confine.ForRole(engine.RoleGateway)
	if err != nil {
		panic(err)
	}
	ready, end := make(chan int), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		raw := f.Marshal()
		prog := unix.SockFprog{Len: uint16(len(raw) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&raw[0]))}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			panic(err)
		}
		if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
			panic(e)
		}
		ready <- unix.Gettid()
		<-end
	}()
	fmt.Println(<-ready)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1)
	go func() {
		for range signals {
			fmt.Println("heard")
		}
	}()
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(0)
}

// start starts the child; it ends when in is closed.
func start(t *testing.T) (c *exec.Cmd, in io.Closer, filtered string) {
	t.Helper()
	c, in, filtered, _ = speaking(t)
	return c, in, filtered
}

// speaking starts the child, which writes a line for each signal that it hears.
func speaking(t *testing.T) (c *exec.Cmd, in io.Closer, filtered string, lines *bufio.Reader) {
	t.Helper()
	c = exec.CommandContext(t.Context(), "/proc/self/exe")
	c.Env = []string{"FILTERED_CHILD=1"}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines = bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return c, in, strings.TrimSpace(line), lines
}

func TestEveryThreadIsRead(t *testing.T) {
	c, in, id := start(t)
	for range 20 { // reading harms nothing: it can be done again
		threads, err := Of(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		filtered := 0
		for _, th := range threads {
			if fmt.Sprint(th.ID) == id {
				filtered++
				if len(th.Filters) != 1 {
					t.Fatalf("%d filters", len(th.Filters))
				}
				f, err := confine.ForRole(engine.RoleGateway)
				if err != nil {
					t.Fatal(err)
				}
				want, err := filter.Parse(f.Marshal())
				if err != nil {
					t.Fatal(err)
				}
				if diff, err := filter.Differences(th.Filters[0], want, 1); err != nil || len(diff) > 0 {
					t.Fatalf("%v %v", diff, err)
				}
			} else if len(th.Filters) != 0 {
				t.Errorf("thread %d has %d filters", th.ID, len(th.Filters))
			}
		}
		if filtered != 1 || len(threads) < 2 {
			t.Fatalf("%d threads, %d filtered", len(threads), filtered)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("the process that was read ends with %v", err)
	}
	if _, err := Of(c.Process.Pid); err == nil {
		t.Error("a process that has ended has threads")
	}
}

// A thread has one tracer at a time: the warden's check and an operator's
// prove, at once, wait for each other.
func TestReadersTakeTurns(t *testing.T) {
	c, in, id := start(t)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 50 {
				threads, err := Of(c.Process.Pid)
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.ContainsFunc(threads, func(th Thread) bool {
					return fmt.Sprint(th.ID) == id && len(th.Filters) == 1
				}) {
					t.Errorf("the filtered thread is not among %d", len(threads))
				}
			}
		})
	}
	readers.Wait()
	_ = in.Close()
	if err := c.Wait(); err != nil {
		t.Errorf("the process that was read ends with %v", err)
	}
}

// A signal that comes between the two steps of the reader is what the thread
// stops with, and would be lost if nobody gave it back.
func TestNoSignalIsLost(t *testing.T) {
	c, in, _, lines := speaking(t)
	id := c.Process.Pid
	thread.Run(func() {
		if err := attach(id); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Tgkill(id, id, unix.SIGUSR1); err != nil {
			t.Error(err)
		}
		stopped := func() bool {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
			return err == nil && strings.Contains(string(raw), ") t ")
		}
		for !stopped() {
			time.Sleep(time.Millisecond)
		}
		if err := ptrace(unix.PTRACE_INTERRUPT, id, 0, nil); err != nil {
			t.Error(err)
		}
		sig, err := awaitStop(id)
		if err != nil || sig != uintptr(unix.SIGUSR1) {
			t.Errorf("it stopped with signal %d, %v", sig, err)
		}
		if err := detach(id, sig); err != nil {
			t.Error(err)
		}
	})
	stop := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() }) // else it would be waited for without end
	if line, err := lines.ReadString('\n'); err != nil || line != "heard\n" {
		t.Errorf("%q, %v", line, err)
	}
	stop.Stop()
	if _, err := Of(id); err != nil {
		t.Error(err)
	}
	_ = in.Close()
	if err := c.Wait(); err != nil {
		t.Errorf("the process that was read ends with %v", err)
	}
}

// A process that is stopped stays so when it has been read.
func TestAStoppedProcessStaysStopped(t *testing.T) {
	c, in, _ := start(t)
	if err := c.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		return rest[:1]
	}
	for state() != "T" {
		time.Sleep(time.Millisecond)
	}
	for range 20 {
		if _, err := Of(c.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(20 * time.Millisecond)
	if s := state(); s != "T" {
		t.Errorf("it is in state %s", s)
	}
	if err := c.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	if err := c.Wait(); err != nil {
		t.Errorf("the process that was read ends with %v", err)
	}
}

// Whoever started a process must be able to wait for its end, also when one of
// its threads died under the eyes of a reader.
func TestWhatDiesWhileItIsReadCanBeWaitedFor(t *testing.T) {
	for range 40 {
		c, in, _ := start(t)
		var readers sync.WaitGroup
		readers.Go(func() {
			for {
				if _, err := Of(c.Process.Pid); err != nil {
					return
				}
			}
		})
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // #nosec G404 -- any moment will do
		if err := c.Process.Kill(); err != nil {
			t.Error(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("what was killed ends well")
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the process cannot be waited for")
		}
		readers.Wait()
		_ = in.Close()
	}
}
