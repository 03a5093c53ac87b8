// Package shim is PID 1 of an agent's containers, the runtime and the gateway.
//
// It inherits the container's confinement (namespaces, Landlock, seccomp,
// cgroup, ids) from the engine and so does everything that it starts, which is
// why `bulkhead exec` goes through it and not around it. It
//
//   - makes itself non-dumpable before it reads anything, since processes of
//     the same user id could otherwise read its token from its memory;
//   - opens the runtime's loopback listeners and hands them to the gateway,
//     again and again whenever the gateway was restarted (clients meanwhile
//     wait in the listeners' queues);
//   - starts the command, reaps orphans, passes SIGTERM on, and ends with the
//     command's exit code, which ends everything in the container;
//   - serves the shim protocol (wire.ShimProtocol) on its control listener:
//     processes with a fresh terminal of the container's own devpts, or with
//     pipes that it makes itself, and the terminal of the command, when it has
//     one, to which operators attach. No descriptor of an operator ever comes in.
//
// What it does not keep: anything against its own command. Both have the same
// user id, and the kernel's walls stand around the two together.
package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/lookpath"
	"bulkhead/internal/reap"
	"bulkhead/internal/shim/message"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/trim"
	"bulkhead/internal/wire"
)

// Descriptors of a shim at its start.
const (
	configFD  = 3
	controlFD = 4
	passedFD  = 5
)

// memoryLimit is the soft limit of the shim's own heap, in bytes.
const memoryLimit = 24 << 20

// shim is one running PID 1.
type shim struct {
	cfg      engine.ShimConfig
	env      []string
	orphans  reap.Orphans
	passed   []*os.File
	control  door      // nil without one
	handover *handover // nil without listeners
	news     news      // of the state

	mu      sync.Mutex
	command *running // nil: not started (session), or ended
	stopped bool
	ended   chan struct{} // closed when code is set
	code    int
	once    sync.Once
	wg      sync.WaitGroup
}

// Main is "bulkhead-shim init". It returns the exit code.
func Main() int {
	// Before the token is read.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "bulkhead shim: make myself non-dumpable:", err)
		return 1
	}
	runtime.GOMAXPROCS(2)
	defer trim.Starting(50)()
	debug.SetMemoryLimit(memoryLimit)
	s, err := read()
	if err == nil {
		err = s.writeToken()
	}
	if err == nil {
		err = s.listen()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bulkhead shim:", err)
		return 1
	}
	return s.run()
}

// read takes the configuration and the descriptors.
func read() (*shim, error) {
	if os.Getpid() != 1 {
		return nil, fmt.Errorf("process %d is not PID 1 of a container: the shim is started by an engine only", os.Getpid())
	}
	f := os.NewFile(configFD, "config")
	raw, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	s := &shim{env: os.Environ(), ended: make(chan struct{})}
	if s.cfg, err = parseConfig(raw); err != nil {
		return nil, err
	}
	for i := range s.cfg.PassFiles {
		unix.CloseOnExec(passedFD + i)
		s.passed = append(s.passed, os.NewFile(uintptr(passedFD+i), "passed")) // #nosec G115 -- small
	}
	unix.CloseOnExec(controlFD)
	return s, s.takeControl()
}

// maxPassed bounds how many descriptors a command may be given.
const maxPassed = 64

func parseConfig(raw []byte) (engine.ShimConfig, error) {
	var c engine.ShimConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	if c.Version != engine.SpecVersion {
		return c, fmt.Errorf("configuration version %d is not %d", c.Version, engine.SpecVersion)
	}
	switch c.Mode {
	case engine.ShimService, engine.ShimTask:
		if len(c.Command) == 0 {
			return c, fmt.Errorf("mode %s needs a command", c.Mode)
		}
	case engine.ShimSession:
	default:
		return c, fmt.Errorf("mode %q is not one", c.Mode)
	}
	if c.PassFiles < 0 || c.PassFiles > maxPassed {
		return c, fmt.Errorf("%d passed descriptors are not between 0 and %d", c.PassFiles, maxPassed)
	}
	if len(c.Listeners) > 0 && c.GatewaySocket == "" {
		return c, errors.New("listeners without a gateway to hand them to")
	}
	if (c.TokenFile != "" || c.Push != nil) && (c.GatewaySocket == "" || c.Token == "") {
		return c, errors.New("a token file or a push without a gateway")
	}
	if p := c.Push; p != nil && (p.Port == 0 || !strings.HasPrefix(p.Path, "/")) {
		return c, fmt.Errorf("push to port %d, path %q: that is no hook", p.Port, p.Path)
	}
	return c, nil
}

// takeControl adopts the control listener, when there is one.
func (s *shim) takeControl() error {
	f := os.NewFile(controlFD, "control")
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(controlFD, &st); err != nil {
		return fmt.Errorf("control listener: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil
	}
	if s.cfg.Relayed {
		h, err := newHatch(f)
		if err != nil {
			return err
		}
		s.control = h
		return nil
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("control listener: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return errors.New("control listener: not a unix socket")
	}
	u.SetUnlinkOnClose(false)
	s.control = u
	return nil
}

// run lives until the command ends or somebody stops it.
func (s *shim) run() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	s.wg.Go(func() { s.orphans.Run(ctx) })
	if s.control != nil {
		s.wg.Go(func() { s.serve(ctx) })
	}
	if s.handover != nil {
		s.wg.Go(func() { s.handover.run(ctx) })
		if s.cfg.Relayed {
			s.wg.Go(func() { s.handover.relay(ctx) })
		}
	}
	if p := s.cfg.Push; p != nil {
		s.wg.Go(func() { message.NewPusher(s.cfg.GatewaySocket, tooltoken.Of(s.cfg.Token), *p).Run(ctx) })
	}
	if s.cfg.Mode != engine.ShimSession {
		s.mu.Lock()
		err := s.start(s.env, s.cfg.Terminal)
		s.mu.Unlock()
		if err != nil {
			fmt.Fprintln(os.Stderr, "bulkhead shim:", err)
			return 127
		}
	}
	for {
		select {
		case sig := <-signals:
			s.stop(sig.(syscall.Signal), 0)
		case <-s.ended:
			// The end of PID 1 ends every process of the container; there is
			// nothing to wait for.
			return s.code
		}
	}
}

// end fixes the exit code.
func (s *shim) end(code int) {
	s.once.Do(func() {
		s.code = code
		close(s.ended)
	})
}

// running is the container's command while it runs.
type running struct {
	cmd     *exec.Cmd
	pid     int
	console *console      // nil without a terminal
	ended   chan struct{} // closed when exit is set
	exit    wire.ExecExited
}

// start runs the command. The caller holds the lock.
func (s *shim) start(env []string, terminal bool) error {
	path, err := lookpath.Find(s.cfg.Command[0], env)
	if err != nil {
		return &execError{err}
	}
	cmd := &exec.Cmd{
		Path: path, Args: s.cfg.Command, Env: env, Dir: s.cfg.Dir, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: s.passed,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	run := &running{cmd: cmd, ended: make(chan struct{})}
	var tty *os.File
	if terminal {
		master, slave, err := openTerminal(unix.O_NONBLOCK)
		if err != nil {
			return err
		}
		// What some programs fail without: a size. This is what terminals began with.
		if err := setSize(master, 24, 80); err != nil {
			return errors.Join(err, master.Close(), slave.Close())
		}
		run.console, tty = newConsole(master, os.Stdout), slave
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr.Setctty = tty, tty, tty, true
	}
	err = s.orphans.Spawn(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, &execError{fmt.Errorf("start %s: %w", path, err)}
		}
		return cmd.Process.Pid, nil
	})
	if tty != nil {
		_ = tty.Close()
	}
	if err != nil {
		if run.console != nil {
			_ = run.console.master.Close()
		}
		return err
	}
	run.pid = cmd.Process.Pid
	s.command = run
	s.news.tell()
	if run.console != nil {
		s.wg.Go(run.console.pump)
	}
	s.wg.Go(func() { s.await(run) })
	return nil
}

// await ends the container with its command. A session outlives it, and may
// start it again.
func (s *shim) await(run *running) {
	_ = run.cmd.Wait() // the state says more than the error
	s.orphans.Gone(run.pid)
	run.exit.Code, run.exit.Signal = exitOf(run.cmd.ProcessState)
	close(run.ended)
	if run.console != nil {
		run.console.finish()
	}
	s.mu.Lock()
	s.command = nil
	over := s.stopped || s.cfg.Mode != engine.ShimSession
	s.mu.Unlock()
	if over {
		s.end(run.exit.Code)
	}
}

// exitOf gives a shell's exit code, and the signal's name.
func exitOf(st *os.ProcessState) (int, string) {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), ws.Signal().String()
	}
	return st.ExitCode(), ""
}

// stop asks the command to end, and makes it after grace (0: no limit). A
// session has no command; its shim ends at once.
func (s *shim) stop(sig syscall.Signal, grace time.Duration) {
	s.mu.Lock()
	run := s.command
	s.stopped = true
	s.mu.Unlock()
	if run == nil {
		s.end(0)
		return
	}
	_ = run.cmd.Process.Signal(sig) // it may just have ended
	if run.console != nil {
		// A shell at a terminal ignores SIGTERM, and ends when the terminal goes.
		_ = unix.Kill(-run.pid, unix.SIGHUP)
	}
	if grace <= 0 {
		return
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-s.ended:
	case <-t.C:
		_ = run.cmd.Process.Kill()
		<-s.ended
	}
}

// with adds variables to the container's environment.
func (s *shim) with(more []string) []string {
	out := make([]string, 0, len(s.env)+len(more))
	for _, e := range s.env {
		name, _, _ := strings.Cut(e, "=")
		replaced := false
		for _, m := range more {
			replaced = replaced || strings.HasPrefix(m, name+"=")
		}
		if !replaced {
			out = append(out, e)
		}
	}
	return append(out, more...)
}
