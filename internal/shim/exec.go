package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/lookpath"
	"bulkhead/internal/wire"
)

// execError marks a program that cannot be started.
type execError struct{ err error }

func (e *execError) Error() string { return e.err.Error() }
func (e *execError) Unwrap() error { return e.err }

// session is one process started for an operator.
type session struct {
	cmd    *exec.Cmd
	master *os.File   // of its terminal; nil with pipes
	inside []*os.File // closed once the process runs
	given  []*os.File // the operator's ends, closed once sent
	far    *far       // an operator's terminal, relayed
}

func (x *session) close() {
	for _, f := range append(append([]*os.File{}, x.inside...), x.given...) {
		_ = f.Close()
	}
}

// exec starts a process and stays until its end, or until the operator leaves.
// files came with the request, from an operator of a relayed shim.
func (s *shim) exec(conn *wire.Conn, m wire.Message, files []*os.File) error {
	var r wire.ExecRequest
	if err := json.Unmarshal(m.Body, &r); err != nil {
		closeAll(files)
		return fmt.Errorf("exec: %w", err)
	}
	x, err := s.newSession(r, files)
	if err != nil {
		return err
	}
	defer x.close()
	if err := s.orphans.Spawn(func() (int, error) {
		if err := x.cmd.Start(); err != nil {
			return 0, &execError{fmt.Errorf("exec %s: %w", r.Argv[0], err)}
		}
		return x.cmd.Process.Pid, nil
	}); err != nil {
		return err
	}
	pid := x.cmd.Process.Pid
	for _, f := range x.inside {
		_ = f.Close()
	}
	err = conn.Send(m.ID, wire.VerbStarted, wire.ExecStarted{PID: pid}, x.given...)
	if x.master == nil {
		for _, f := range x.given {
			_ = f.Close()
		}
	}
	if err != nil {
		killSession(pid)
	}
	ended := make(chan struct{})
	orders := make(chan struct{})
	go func() { // ends when the connection does, which exec sees to below
		defer close(orders)
		x.obey(conn, ended)
	}()
	_ = x.cmd.Wait() // the state says more than the error
	close(ended)
	s.orphans.Gone(pid)
	if x.far != nil {
		x.far.close(x.master)
	}
	code, name := exitOf(x.cmd.ProcessState)
	err = conn.Send(m.ID, wire.VerbExited, wire.ExecExited{Code: code, Signal: name})
	// The operator's connection carries one exec and no more.
	_ = conn.Close()
	<-orders
	return err
}

// obey carries out resize and signal until the connection ends. When that is
// before the process's end, the operator has left: the whole session goes.
func (x *session) obey(conn *wire.Conn, ended chan struct{}) {
	pid := x.cmd.Process.Pid
	for {
		m, files, err := conn.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			select {
			case <-ended:
			default:
				killSession(pid)
			}
			return
		}
		switch m.Verb {
		case wire.VerbResize:
			var r wire.Resize
			if x.master != nil && json.Unmarshal(m.Body, &r) == nil {
				_ = setSize(x.master, r.Rows, r.Cols)
			}
		case wire.VerbSignal:
			var sig wire.Signal
			if json.Unmarshal(m.Body, &sig) == nil && sig.Number > 0 && sig.Number <= 64 {
				_ = unix.Kill(-pid, syscall.Signal(sig.Number)) // its process group; it may just have ended
			}
		}
	}
}

// newSession prepares a process with a terminal or with pipes.
func (s *shim) newSession(r wire.ExecRequest, files []*os.File) (*session, error) {
	if s.cfg.Relayed {
		n := 3
		if r.Terminal {
			n = 1
		}
		if err := passed(files, n); err != nil {
			return nil, fmt.Errorf("exec: %w", err)
		}
	}
	x, err := s.session(r, files)
	if err != nil {
		closeAll(files)
	}
	return x, err
}

func (s *shim) session(r wire.ExecRequest, files []*os.File) (*session, error) {
	if len(r.Argv) == 0 {
		return nil, errors.New("exec: no command")
	}
	env := s.with(r.Env)
	path, err := lookpath.Find(r.Argv[0], env)
	if err != nil {
		return nil, &execError{err}
	}
	dir := r.Dir
	if dir == "" {
		dir = s.cfg.Dir
	}
	x := &session{cmd: &exec.Cmd{Path: path, Args: r.Argv, Env: env, Dir: dir, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}}
	switch {
	case r.Terminal:
		if err = x.terminal(r.Rows, r.Cols); err == nil && s.cfg.Relayed {
			x.given = nil
			x.far, err = relayTerminal(x.master, files[0])
		}
	case s.cfg.Relayed:
		x.inside = files
		x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = files[0], files[1], files[2]
	default:
		err = x.pipes()
	}
	if err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

func (x *session) pipes() error {
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("exec: pipe: %w", err)
		}
		if i == 0 {
			x.inside, x.given = append(x.inside, r), append(x.given, w)
		} else {
			x.inside, x.given = append(x.inside, w), append(x.given, r)
		}
	}
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = x.inside[0], x.inside[1], x.inside[2]
	return nil
}

// terminal gives the process a terminal of the container's own devpts.
func (x *session) terminal(rows, cols uint16) error {
	master, tty, err := openTerminal(0)
	if err != nil {
		return err
	}
	x.master, x.given, x.inside = master, []*os.File{master}, []*os.File{tty}
	if rows > 0 && cols > 0 {
		if err := setSize(master, rows, cols); err != nil {
			return err
		}
	}
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = tty, tty, tty
	x.cmd.SysProcAttr.Setctty = true
	return nil
}

// openTerminal makes a pair on the container's own devpts, the master with more
// flags. The slave is opened through the master, so no path decides which one it
// is (ioctl_tty(2)).
func openTerminal(flags int) (master, tty *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("unlock the terminal: %w", err), unix.Close(fd))
	}
	slave, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC) // #nosec G115 -- a descriptor
	if e != 0 {
		return nil, nil, errors.Join(fmt.Errorf("open the terminal's other end: %w", e), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "terminal"), os.NewFile(slave, "tty"), nil // #nosec G115 -- descriptors
}

func setSize(f *os.File, rows, cols uint16) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("terminal size: %w", err)
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}) // #nosec G115 -- a descriptor
	})
	if err = errors.Join(err, serr); err != nil {
		return fmt.Errorf("terminal size: %w", err)
	}
	return nil
}

// killSession ends every process of a session: its leader's group, and groups
// that a shell made for its jobs. Twice, for what forked meanwhile.
func killSession(sid int) {
	_ = unix.Kill(-sid, unix.SIGKILL)
	for range 2 {
		for _, pid := range sessionOf(sid) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// sessionOf lists the processes of a session (field 6 of proc_pid_stat(5)).
func sessionOf(sid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 {
			continue
		}
		raw, err := os.ReadFile("/proc/" + e.Name() + "/stat") // #nosec G304 -- procfs
		if err != nil {
			continue
		}
		if got, ok := parseSession(string(raw)); ok && got == sid {
			out = append(out, pid)
		}
	}
	return out
}

func parseSession(stat string) (int, bool) {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, false
	}
	f := strings.Fields(stat[i+1:])
	if len(f) < 4 {
		return 0, false
	}
	n, err := strconv.Atoi(f[3])
	return n, err == nil
}
