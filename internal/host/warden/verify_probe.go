package warden

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/evidence"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/wire"
)

// maxAnswer bounds what a probe may say: the rest is cut, and then it is lost.
const maxAnswer = attempt.MaxBytes + 1

// prober starts probes in the real places of running agents.
type prober struct {
	w    *Warden
	team string
}

var _ evidence.Host = prober{}

// Probe implements evidence.Host.
func (p prober) Probe(ctx context.Context, agent string, from evidence.Position, request []byte) ([]byte, error) {
	var a *agentRun
	if from != evidence.FromServer {
		var err error
		if a, err = p.w.anyAgent(p.team, agent); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The timer starts anew with everything that the probe says.
	timer := time.AfterFunc(silence, cancel)
	defer timer.Stop()
	said := func() { timer.Reset(silence) }
	switch from {
	case evidence.FromRuntime:
		return a.probeThroughShim(ctx, runtimeName, request, said)
	case evidence.FromGateway:
		return a.probeThroughShim(ctx, gatewayName, request, said)
	case evidence.FromAccount:
		return a.probeIn(ctx, engine.Spec{
			Version: engine.SpecVersion, Team: a.Place.Team, Agent: a.Place.Name, Name: "probe-", Role: engine.RoleAccount,
			User: engine.User{ID: a.IDs.Account}, Command: []string{filepath.Join(a.programs(), probeProgram)}, Env: []string{}, Dir: "/",
			Limits: engine.Limits{}.WithDefaults(),
		}, request, said)
	case evidence.FromCode:
		return a.probeIn(ctx, a.codeProbe(), request, said)
	case evidence.FromServer:
		return p.w.probeServer(ctx, p.team, agent, request, said)
	}
	return nil, fmt.Errorf("no position %q", from)
}

// silence is how long a probe may say nothing. It writes each answer as it has
// it, and bounds each attempt by 20 seconds: one that is quiet for longer was
// stopped by what it attacks.
const silence = 30 * time.Second

func (a *agentRun) probeThroughShim(ctx context.Context, container string, request []byte, said func()) ([]byte, error) {
	c, err := dialWire(ctx, a.Place.ShimSocket(container), wire.ShimProtocol, wire.ShimVersion)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Unix().SetDeadline(time.Now()) })
	defer stop()
	inside, outside, err := a.stdioFor(container, false)
	if err != nil {
		return nil, err
	}
	defer closeFiles(outside)
	err = c.Send(1, wire.VerbExec, wire.ExecRequest{Argv: []string{programsDir + "/" + probeProgram}, Dir: "/"}, inside...)
	closeFiles(inside)
	if err != nil {
		return nil, err
	}
	m, files, err := c.Recv()
	files = append(files, outside...)
	defer closeFiles(files)
	if err != nil {
		return nil, err
	}
	var st wire.ExecStarted
	if err := decode(m, &st); err != nil {
		return nil, err
	}
	if len(files) != 3 {
		return nil, fmt.Errorf("the shim passed %d descriptors, want 3", len(files))
	}
	answer, err := converse(ctx, files[0], files[1], files[2], request, said)
	if err != nil {
		return answer, err
	}
	_, more, err := c.Recv() // exited
	closeFiles(more)
	return answer, err
}

// codeProbe is a cell of code's with the probe in the place of an interpreter.
func (a *agentRun) codeProbe() engine.Spec {
	const programs = "/tmp" + programsDir // in memory, since the image need not have a place for it
	s := a.weaker(codeSpec(a.w.host, &a.Agent))
	s.Name = launcher.CodePrefix + "probe-"
	s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: a.programs(), Target: programs, Exec: true})
	s.Command = []string{programs + "/" + probeProgram}
	// The probe is not what the limits are for: exhaustion is tried in decoys.
	s.Limits.MemoryBytes, s.Limits.PIDs = max(s.Limits.MemoryBytes, probeMemory), max(s.Limits.PIDs, probePIDs)
	return s
}

// What a probe needs.
const (
	probeMemory = 128 << 20
	probePIDs   = 64
)

// probeIn has the launcher run a probe in a container of its own, whose name is
// finished here.
func (a *agentRun) probeIn(ctx context.Context, spec engine.Spec, request []byte, said func()) ([]byte, error) {
	client, err := launcher.Connect(ctx, a.Place.LauncherSocket())
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	inside, outside, err := stdioPipes()
	if err != nil {
		return nil, err
	}
	defer closeFiles(outside)
	spec.Name += strings.ToLower(rand.Text()[:10])
	spec.Cgroup = cgroupOf(&a.Agent, spec.Name)
	c, err := client.Launch(ctx, launcher.LaunchRequest{Spec: spec, Stdio: true}, inside...)
	closeFiles(inside)
	if err != nil {
		return nil, err
	}
	if c.PIDFD != nil {
		defer func() { _ = c.PIDFD.Close() }()
	}
	stop := context.AfterFunc(ctx, func() { _, _ = client.Kill(context.WithoutCancel(ctx), spec.Name) })
	defer stop()
	answer, err := converse(ctx, outside[0], outside[1], outside[2], request, said)
	if err != nil {
		return answer, err
	}
	_, err = client.Wait(ctx, spec.Name)
	return answer, err
}

// converse writes the request, closes stdin and reads the answer to its end.
// What the probe writes to stderr explains an empty answer.
//
// The probe runs among the agent's processes, which may stop it or hold its
// pipes: nothing here waits longer than ctx. said is called for each part of
// the answer.
func converse(ctx context.Context, stdin, stdout, stderr *os.File, request []byte, said func()) ([]byte, error) {
	for _, f := range []**os.File{&stdin, &stdout, &stderr} {
		p, err := pollable(*f)
		if err != nil {
			return nil, err
		}
		defer func() { _ = p.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = p.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		*f = p
	}
	var errs bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(&errs, io.LimitReader(stderr, 4096)) })
	_, werr := stdin.Write(request)
	werr = errors.Join(werr, stdin.Close())
	answer, err := io.ReadAll(io.LimitReader(heard{stdout, said}, maxAnswer))
	wg.Wait()
	if err = errors.Join(werr, err); err == nil && len(answer) == 0 {
		err = fmt.Errorf("the probe said nothing: %s", strings.TrimSpace(errs.String()))
	}
	return answer, err // what was said before it failed counts
}

// heard tells of every read that brought something.
type heard struct {
	io.Reader
	said func()
}

func (h heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.said()
	}
	return n, err
}

// pollable gives a descriptor of its own for the same pipe, whose reads and
// writes can have a deadline.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("warden: pipe of a probe: %w", err)
	}
	_ = f.Close() // or the probe would not see the end of its input
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("warden: pipe of a probe: %w", err)
	}
	return os.NewFile(uintptr(fd), "pipe"), nil // #nosec G115 -- a descriptor
}
