package warden

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// exec passes an operator's command to the shim of a container, and the
// descriptors that the shim made for it back. The warden carries no data.
func (c *call) exec() error {
	var req wire.AgentExec
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.unfenced(req.Team, req.Agent)
	if err != nil {
		return err
	}
	container := req.Container
	if container == "" {
		container = runtimeName
	}
	if container != runtimeName && container != gatewayName {
		return badInput(fmt.Sprintf("agent %s has no container %q to run commands in", req.Agent, container), "the containers are runtime and gateway")
	}
	if len(req.Exec.Argv) == 0 {
		return badInput("no command", "bulkhead exec "+req.Agent+" -- COMMAND")
	}
	return c.carry(c.command(a, "exec in "+container, req.Exec.Argv), container, wire.VerbExec, req.Exec, req.Exec.Terminal)
}

// attach passes an operator to the terminal of the agent's command.
func (c *call) attach() error {
	var req wire.AgentAttach
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.unfenced(req.Team, req.Agent)
	if err != nil {
		return err
	}
	return c.carry(&act{c: c, a: a, target: "terminal", what: "attach"}, runtimeName, wire.VerbAttach, req.Attach, true)
}

// carry passes a request to the shim of a container, and everything between the
// two until one of them leaves. x is what is done by it.
func (c *call) carry(x *act, container, verb string, body any, terminal bool) (err error) {
	a := x.a
	name := a.Want.Name
	how, failed := "the operator left", error(nil)
	defer func() { x.end(how, errors.Join(failed, err)) }()
	shim, err := dialWire(c.ctx, a.Place.ShimSocket(container), wire.ShimProtocol, wire.ShimVersion)
	if err != nil {
		return notRunning(container, name, err)
	}
	defer func() { _ = shim.Close() }()
	inside, outside, err := a.stdioFor(container, terminal)
	if err != nil {
		return err
	}
	defer func() { closeFiles(outside) }()
	x.begin()
	err = shim.Send(1, verb, body, inside...)
	closeFiles(inside)
	if err != nil {
		return err
	}
	// What the operator sends later (resize, signal) goes to the shim; when
	// the operator leaves, the shim's connection is closed.
	var left atomic.Bool
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer func() { _ = shim.Close() }()
		for {
			m, files, err := c.conn.Recv()
			closeFiles(files)
			if err != nil {
				left.Store(true)
				return
			}
			if m.Verb != wire.VerbResize && m.Verb != wire.VerbSignal {
				continue
			}
			if err := shim.Send(m.ID, m.Verb, m.Body); err != nil {
				return
			}
		}
	}()
	defer func() { _ = c.conn.Close(); <-gone }()
	for {
		m, files, err := shim.Recv()
		if err != nil {
			if left.Load() { // and so the shim's connection was closed
				return nil
			}
			failed = &fault{wire.Failure{
				Message: fmt.Sprintf("the %s of agent %s ended while the command ran, and the command with it", container, name),
				Mend:    "look at bulkhead status; the command may have been half done", Exit: wire.ExitFailed,
			}}
			c.fail(failed) // before the connection is closed below
			return nil
		}
		if m.Verb == wire.VerbStarted && len(outside) > 0 {
			files, outside = append(files, outside...), nil
		}
		over := m.Verb == wire.VerbExited || m.Verb == wire.VerbError
		if over {
			how, failed = exitHow(m)
		}
		err = c.conn.Send(c.id, m.Verb, m.Body, files...)
		closeFiles(files)
		if err != nil || over {
			return nil // the operator has the answer, or has left
		}
	}
}

// notRunning is the answer to who wants something of a container that is not
// there. What a socket's absence is called helps nobody who stopped the agent.
func notRunning(container, agent string, err error) error {
	why := ""
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
		why = ": " + err.Error()
	}
	return &fault{wire.Failure{
		Message: fmt.Sprintf("the %s of agent %s does not run%s", container, agent, why), Exit: wire.ExitFailed,
		Mend: "look at bulkhead status, then bulkhead restart " + agent,
	}}
}

// run starts a one-off container with the agent's runtime profile.
func (c *call) run() error {
	var req wire.RunRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.unfenced(req.Team, req.Agent)
	if err != nil {
		return err
	}
	if len(req.Exec.Argv) == 0 {
		return badInput("no command", "bulkhead run "+req.Agent+" -- COMMAND")
	}
	if req.Exec.Terminal {
		return badInput("a one-off container has no terminal", "leave out --tty, or use bulkhead exec")
	}
	a.procs.Lock()
	client := a.launcher
	a.procs.Unlock()
	if client == nil {
		return &fault{wire.Failure{Message: "agent " + req.Agent + " does not run", Mend: "bulkhead up", Exit: wire.ExitFailed}}
	}
	inside, outside, err := stdioPipes()
	if err != nil {
		return err
	}
	spec := a.weaker(runSpec(c.w.host, &a.Agent, a.programs()))
	spec.Name = "run-" + strings.ToLower(rand.Text()[:10])
	spec.Cgroup = cgroupOf(&a.Agent, spec.Name)
	spec.Command, spec.Env = req.Exec.Argv, append(spec.Env, req.Exec.Env...)
	if req.Exec.Dir != "" {
		spec.Dir = req.Exec.Dir
	}
	running := false
	x := c.command(a, "run in a one-off container", req.Exec.Argv)
	x.begin()
	obeyed, over := make(chan struct{}), make(chan struct{})
	exit, err := client.Run(c.ctx, launcher.LaunchRequest{Spec: spec, Stdio: true, Fresh: req.Fresh}, func(one launcher.Container) error {
		running = true
		closeFiles(inside)
		err := c.conn.Send(c.id, wire.VerbStarted, wire.ExecStarted{PID: 1}, outside...)
		closeFiles(outside)
		go func() { // ends with the operator's connection
			defer close(obeyed)
			c.obeyRun(client, one, over)
			_ = one.PIDFD.Close()
		}()
		return err
	}, inside...)
	if running {
		defer func() { _ = c.conn.Close(); <-obeyed }()
	}
	if err == nil {
		close(over)
	}
	if !running {
		closeFiles(inside)
		closeFiles(outside)
		f := wire.Failure{Message: "start: " + err.Error(), Exit: wire.ExitFailed}
		var known *launcher.Failure
		if errors.As(err, &known) && known.Exit != 0 {
			f.Exit, f.Mend = known.Exit, known.Mend
		}
		x.end("", &fault{f})
		return &fault{f}
	}
	if err != nil {
		x.end("", err)
		_, kerr := client.Kill(context.WithoutCancel(c.ctx), spec.Name)
		return errors.Join(err, kerr)
	}
	x.end(exitWords(exit.Code, exit.Signal), nil)
	return c.conn.Send(c.id, wire.VerbExited, wire.ExecExited{Code: exit.Code, Signal: exit.Signal})
}

// obeyRun passes the operator's signals to a one-off container, until the
// operator leaves; that ends the container, unless it is over already.
func (c *call) obeyRun(client *launcher.Client, made launcher.Container, over <-chan struct{}) {
	for {
		m, files, err := c.conn.Recv()
		closeFiles(files)
		if err != nil {
			select {
			case <-over:
			default:
				_, _ = client.Kill(c.ctx, made.Name) // an error says that it is over
			}
			return
		}
		var sig wire.Signal
		if m.Verb != wire.VerbSignal || json.Unmarshal(m.Body, &sig) != nil || made.PIDFD == nil {
			continue
		}
		if pid, err := launcher.HostPIDOf(made.PIDFD); err != nil || ends(pid, sig.Number) {
			_, _ = client.Kill(c.ctx, made.Name)
			continue
		}
		_ = unix.PidfdSendSignal(int(made.PIDFD.Fd()), unix.Signal(sig.Number), nil, 0) // it may have ended
	}
}

// ends says whether the signal would end the process if it were not the first
// one of a PID namespace, which the kernel spares every signal that it has no
// handler for (pid_namespaces(7)).
func ends(pid, number int) bool {
	switch unix.Signal(number) {
	case unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT:
	default:
		return false
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // #nosec G304 -- procfs
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(line, ":")
		if key != "SigCgt" && key != "SigIgn" {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err == nil && mask&(1<<(number-1)) != 0 {
			return false
		}
	}
	return true
}

// stdioPipes makes three pipes. inside are stdin's read end and stdout's and
// stderr's write ends; outside are the other ends, in the same order. They are
// only passed on, so none is given to this process's poller; the operator's
// come to it without blocking, as its own poller wants them.
func stdioPipes() (inside, outside []*os.File, err error) {
	for i := range 3 {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			closeFiles(append(inside, outside...))
			return nil, nil, fmt.Errorf("warden: pipe: %w", err)
		}
		if i > 0 {
			p[0], p[1] = p[1], p[0]
		}
		in, out := os.NewFile(uintptr(p[0]), "stdio"), os.NewFile(uintptr(p[1]), "stdio") // #nosec G115 -- descriptors
		inside, outside = append(inside, in), append(outside, out)
		if err := unix.SetNonblock(p[1], true); err != nil {
			closeFiles(append(inside, outside...))
			return nil, nil, fmt.Errorf("warden: pipe: %w", err)
		}
	}
	return inside, outside, nil
}

// logs passes the descriptors of a container's log files, oldest first. They
// are opened read-only: whoever has them can change nothing.
func (c *call) logs() error {
	var req wire.LogsRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	if req.Agent == layout.AdapterName {
		a, err := c.w.adapterOf(req.Team)
		if err != nil {
			return err
		}
		return c.passLogs(a.logPath())
	}
	a, err := c.w.anyAgent(req.Team, req.Agent)
	if err != nil {
		return err
	}
	name := req.Container
	if name == "" {
		name = runtimeName
	}
	if a.Want.Guest && name == runtimeName {
		return badInput(req.Agent+" is a guest: it has no runtime, and so no log of one", "ask for --container gateway")
	}
	if !slices.Contains([]string{runtimeName, gatewayName, dialerName}, name) {
		return badInput(fmt.Sprintf("agent %s has no log of %q", req.Agent, name), "the logs are runtime, gateway and dialer")
	}
	return c.passLogs(filepath.Join(a.Place.Logs(), name+".log"))
}

// passLogs passes the descriptors of a log and its rotated parts.
func (c *call) passLogs(base string) error {
	files, err := logFiles(base)
	if err != nil {
		return err
	}
	defer closeFiles(files)
	return c.conn.Send(c.id, wire.VerbResult, struct {
		SchemaVersion int `json:"schemaVersion"`
		Files         int `json:"files"`
	}{1, len(files)}, files...)
}

// logFiles opens a log's files, oldest first. They are opened newest first, so
// that a rotation meanwhile shows one of them twice and leaves none out.
func logFiles(base string) (files []*os.File, err error) {
	for _, path := range []string{base, base + ".1", base + ".2"} {
		f, err := os.Open(path) // #nosec G304 -- one of three names below root's folder
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			closeFiles(files)
			return nil, fmt.Errorf("warden: %w", err)
		}
		if slices.ContainsFunc(files, func(o *os.File) bool { return sameFile(o, f) }) {
			_ = f.Close()
			continue
		}
		files = append(files, f)
	}
	slices.Reverse(files)
	return files, nil
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}
