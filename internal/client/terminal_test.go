package client

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/wire"
)

// openPTY gives both ends of a real terminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	fd, _ := number(master)
	if err := unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestATerminalSessionCarriesSizeSignalAndOutput(t *testing.T) {
	verbs := make(chan string, 8)
	c := counterpart(t, goodHello, func(c *wire.Conn, m wire.Message) {
		master, slave := openPTY(t)
		cmd := exec.Command("sh", "-c", "read line; stty size; echo got $line; exit 3")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			_ = c.Send(m.ID, wire.VerbError, wire.Failure{Message: err.Error()})
			return
		}
		_ = slave.Close()
		_ = c.Send(m.ID, wire.VerbStarted, wire.ExecStarted{PID: cmd.Process.Pid}, master)
		for range 2 {
			m, _, err := c.Recv()
			if err != nil {
				break
			}
			verbs <- m.Verb + " " + string(m.Body)
			var size wire.Resize
			if m.Verb == wire.VerbResize && json.Unmarshal(m.Body, &size) == nil {
				fd, _ := number(master)
				_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
			}
		}
		verbs <- "sized"
		_ = cmd.Wait()
		_ = master.Close()
		_ = c.Send(m.ID, wire.VerbExited, wire.ExecExited{Code: cmd.ProcessState.ExitCode()})
	})
	s, err := c.Start(t.Context(), wire.VerbExec, wire.AgentExec{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Resize(33, 101); err != nil {
		t.Fatal(err)
	}
	if err := s.Signal(28); err != nil { // SIGWINCH: harmless
		t.Fatal(err)
	}
	for _, want := range []string{`resize {"rows":33,"cols":101}`, `signal {"number":28}`, "sized"} {
		if got := <-verbs; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	_, _ = io.WriteString(w, "hello\n")
	var out bytes.Buffer
	exited, err := s.Run(t.Context(), in, &out, io.Discard)
	if err != nil || exited.Code != 3 || !strings.Contains(out.String(), "33 101") || !strings.Contains(out.String(), "got hello") {
		t.Errorf("got %+v, %q, %v", exited, out.String(), err)
	}
}
