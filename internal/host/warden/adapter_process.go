package warden

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
)

// adapterContainer is the name of the adapter's one container.
const adapterContainer = "adapter"

// adapterLimits bound the adapter of a team: it holds a socket and connections
// for each of up to a thousand agents.
var adapterLimits = engine.Limits{MemoryBytes: 512 << 20, MilliCPU: 4000, PIDs: 128, NoFile: 16384}

// Bounds of waiting for an adapter. At its start it checks its whole file.
const (
	adapterReady = 60 * time.Second
	adapterAsk   = 30 * time.Second // a busy disk is no reason to start it again
	adapterGrace = 5 * time.Second  // for its end after SIGTERM
)

// adapterState is what the running process was started with.
type adapterState struct {
	Version int                       `json:"version"`
	Build   string                    `json:"build"`
	Agents  map[string]protocol.Agent `json:"agents"`
}

func (a *adapterRun) statePath() string   { return filepath.Join(a.place.Run, "state.json") }
func (a *adapterRun) processPath() string { return filepath.Join(a.place.Run, "process.json") }
func (a *adapterRun) cgroup() string {
	return filepath.Join(a.place.Team, a.place.Name, adapterContainer)
}

// adapterSpec describes the adapter: an empty root with our static program and
// its data, in the initial user namespace, where SO_PEERCRED shows true ids.
// Its network namespace holds a loopback that Landlock and seccomp close.
func adapterSpec(p layout.Agent, uid uint32, programs string) engine.Spec {
	return engine.Spec{
		Version: engine.SpecVersion, Team: p.Team, Agent: p.Name, Name: adapterContainer, Role: engine.RoleAdapter,
		User: engine.User{ID: uid},
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 64 << 20, Mode: 0o1777},
			{Kind: engine.MountBind, Source: p.AdapterData(), Target: insideData, Writable: true},
			{Kind: engine.MountBind, Source: programs, Target: programsDir, Exec: true},
		},
		Command:  []string{programsDir + "/" + serveProgram, "adapter"},
		Env:      []string{"HOME=/data", "TMPDIR=/tmp"},
		Dir:      "/",
		Hostname: "adapter",
		Limits:   adapterLimits.WithDefaults(),
		Cgroup:   filepath.Join(p.Team, p.Name, adapterContainer),
	}
}

// bringUp makes the adapter run as wanted, from any state, and returns when it
// answers. The caller holds a.procs.
func (a *adapterRun) bringUp(ctx context.Context) error {
	a.mu.Lock()
	wants := a.wants
	a.mu.Unlock()
	if a.process == nil {
		a.process = a.w.adopt(a.processPath(), a.uid, a.cgroup())
	}
	if a.process != nil && a.process.alive() && a.knows(wants.agents) {
		if err := a.tell(ctx, wants.policy); err == nil || ctx.Err() != nil {
			return err
		}
		a.w.log.Warn("the adapter does not answer; starting it again", "team", a.place.Team)
	}
	if err := a.end(ctx); err != nil {
		return err
	}
	if err := a.launch(wants); err != nil {
		return err
	}
	return a.ready(ctx)
}

// knows says whether the running process has a listener for every agent, with
// the ids and tokens that are wanted. One for an agent that is gone harms
// nobody: its socket's path is gone as well.
func (a *adapterRun) knows(agents map[string]protocol.Agent) bool {
	var st adapterState
	if ok, err := readJSON(a.statePath(), &st); err != nil || !ok || st.Version != stateVersion {
		return false
	}
	a.runsWith(st.Build)
	for name, one := range agents {
		if st.Agents[name] != one {
			return false
		}
	}
	return true
}

func (a *adapterRun) runsWith(programs string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.with = programs
}

// launch starts the process with one listening socket for each agent.
func (a *adapterRun) launch(wants adapterWants) error {
	names := slices.Sorted(maps.Keys(wants.agents))
	cfg := protocol.Config{
		Team: a.place.Team, Policy: wants.policy, Agents: wants.agents,
		Database: insideData + "/messages.db", Listeners: append(names, protocol.OperatorListener),
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	cf, err := sealed("adapter-config", cfg)
	if err != nil {
		return err
	}
	files := []*os.File{cf}
	defer func() { closeFiles(files) }()
	for _, name := range names {
		f, err := listenFile(a.w.host.Agent(a.place.Team, name).AdapterSocket(), 0o660, wants.agents[name].GatewayID)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	f, err := listenFile(a.place.OperatorSocket(), 0o600, 0)
	if err != nil {
		return err
	}
	files = append(files, f)
	log, err := openLog(a.logPath())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	spec := adapterSpec(a.place, a.uid, a.w.host.Programs(a.w.build))
	a.mu.Lock()
	spec.AcceptMissing = acceptedMechanisms(a.accepted)
	a.mu.Unlock()
	if err := writeJSON(filepath.Join(a.place.Conf(), adapterContainer+".spec.json"), spec); err != nil {
		return err
	}
	if err := writeJSON(a.statePath(), adapterState{Version: stateVersion, Build: a.w.build, Agents: wants.agents}); err != nil {
		return err
	}
	p, err := cell.Start(spec, cell.Options{Cgroups: a.w.cgroups, Bare: a.w.bare, Stdout: log, Stderr: log, Files: files})
	if err != nil {
		return fmt.Errorf("start the adapter: %w", err)
	}
	a.runsWith(a.w.build)
	a.process = started(p)
	return writeJSON(a.processPath(), a.process.identity)
}

func (a *adapterRun) logPath() string {
	return filepath.Join(a.place.Logs(), adapterContainer+".log")
}

// listenFile is listen for a socket that is only passed on.
func listenFile(path string, mode, gid uint32) (*os.File, error) {
	ln, err := listen(path, mode, int(gid))
	if err != nil {
		return nil, err
	}
	f, err := ln.File()
	if err = errors.Join(err, ln.Close()); err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	return f, nil
}

// ready waits until the adapter answers on the operator's socket, which it does
// once its file is open and checked.
func (a *adapterRun) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adapterReady)
	defer cancel()
	for {
		err := a.ask(ctx, func(o *client.Operator) error {
			_, err := o.Queues(ctx)
			return err
		})
		switch {
		case err == nil:
			return nil
		case !a.process.alive():
			return fmt.Errorf("the adapter ended before it was ready; see `bulkhead logs %s`", a.place.Name)
		case ctx.Err() != nil:
			return fmt.Errorf("the adapter was not ready after %s: %w; see `bulkhead logs %s`", adapterReady, err, a.place.Name)
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// tell gives a running adapter the policy.
func (a *adapterRun) tell(ctx context.Context, p adapter.Policy) error {
	ctx, cancel := context.WithTimeout(ctx, adapterAsk)
	defer cancel()
	return a.ask(ctx, func(o *client.Operator) error { return o.SetPolicy(ctx, p) })
}

func (a *adapterRun) ask(ctx context.Context, do func(*client.Operator) error) error {
	o, err := client.DialOperator(ctx, a.place.OperatorSocket())
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }()
	return do(o)
}

// end ends the process, politely first, and everything else in its cgroup. The
// caller holds a.procs.
func (a *adapterRun) end(ctx context.Context) error {
	if a.process == nil {
		a.process = a.w.adopt(a.processPath(), a.uid, a.cgroup())
	}
	if p := a.process; p != nil {
		if p.alive() {
			_ = unix.PidfdSendSignal(int(p.pidfd.Fd()), unix.SIGTERM, nil, 0)
			grace, cancel := context.WithTimeout(ctx, adapterGrace)
			p.wait(grace)
			cancel()
		}
		p.kill()
		a.process = nil
	}
	if err := a.w.killCgroup(a.cgroup()); err != nil {
		return err
	}
	return tree.Remove(a.processPath())
}

// listening says whether somebody accepts connections on a unix socket of this
// network namespace (proc_net(5): the flag __SO_ACCEPTCON).
func listening(path string) (bool, error) {
	raw, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return false, fmt.Errorf("warden: %w", err)
	}
	return listensIn(string(raw), path), nil
}
