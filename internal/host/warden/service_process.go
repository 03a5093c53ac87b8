package warden

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	auditproto "bulkhead/internal/audit/protocol"
	control "bulkhead/internal/control/protocol"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	front "bulkhead/internal/front/protocol"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/hub"
	"bulkhead/internal/layout"
	topics "bulkhead/internal/topic/protocol"
	"bulkhead/internal/wire"
)

// serviceLimits bound a server: front, audit and topics hold a connection of each of
// up to a thousand gateways.
var serviceLimits = engine.Limits{MemoryBytes: 512 << 20, MilliCPU: 4000, PIDs: 128, NoFile: 16384}

// Bounds of waiting for a server. At its start audit checks its whole log.
const (
	serviceReady = 60 * time.Second
	serviceAsk   = 10 * time.Second
	serviceGrace = 5 * time.Second
	maxTLSFile   = 1 << 20
)

// serviceState is what the running process was started with.
type serviceState struct {
	Version int    `json:"version"`
	Digest  string `json:"digest"`
}

func (s *service) statePath() string   { return filepath.Join(s.place.Run, "state.json") }
func (s *service) processPath() string { return filepath.Join(s.place.Run, "process.json") }
func (s *service) logPath() string     { return filepath.Join(s.place.Logs(), s.place.Name+".log") }

// serviceSpec describes a server: an empty root with our static program and its
// data, in the initial user namespace, where SO_PEERCRED shows true ids. Its
// network namespace holds a loopback that Landlock and seccomp close; front's
// listening socket is made outside and passed in.
func serviceSpec(p layout.Service, uid uint32, programs string) engine.Spec {
	return engine.Spec{
		Version: engine.SpecVersion, Name: p.Name, Role: engine.RoleService,
		User: engine.User{ID: uid},
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 16 << 20, Mode: 0o1777},
			{Kind: engine.MountBind, Source: p.Data(), Target: insideData, Writable: true},
			{Kind: engine.MountBind, Source: programs, Target: programsDir, Exec: true},
		},
		Command:  []string{programsDir + "/" + serveProgram, p.Name},
		Env:      []string{"GOMAXPROCS=2", "HOME=/data", "TMPDIR=/tmp"},
		Dir:      "/",
		Hostname: p.Name,
		Limits:   serviceLimits.WithDefaults(),
		Cgroup:   p.Cgroup(),
	}
}

// config is what the server is told at its start, and the addresses on which it
// listens.
func (s *service) config() (cfg any, listen []netip.AddrPort, err error) {
	s.mu.Lock()
	wants := s.wants
	s.mu.Unlock()
	switch s.place.Name {
	case layout.ControlName:
		out := control.Config{Data: insideData}
		for _, name := range slices.Sorted(maps.Keys(wants.guests)) {
			token, err := adminToken(wants.guests[name])
			if err != nil {
				return nil, nil, err
			}
			out.Admins = append(out.Admins, control.Admin{Team: name, Token: token, Ceiling: wants.guests[name]})
		}
		return out, nil, nil
	case layout.AuditName:
		return auditproto.Config{Data: insideData}, nil, nil
	case layout.TopicsName:
		return topics.Config{Data: insideData}, nil, nil
	}
	out := front.Config{}
	for _, at := range slices.SortedFunc(maps.Keys(wants.fronts), netip.AddrPort.Compare) {
		one := front.Listener{Address: at.String(), Teams: wants.teams[at]}
		for _, name := range wants.teams[at] {
			g := wants.guests[name]
			if g == nil {
				continue
			}
			token, err := adminToken(g)
			if err != nil {
				return nil, nil, err
			}
			one.Guests = append(one.Guests, front.Guests{Team: name, Token: token})
		}
		if f := wants.fronts[at]; f.Cert.Path != "" {
			if one.Certificate, one.Key, err = frontPair(f); err != nil {
				return nil, nil, err
			}
		}
		out.Listeners = append(out.Listeners, one)
		listen = append(listen, at)
	}
	return out, listen, nil
}

// bringUp makes the server run as wanted, from any state, and returns when it
// answers and knows its members. The caller holds s.procs.
func (s *service) bringUp(ctx context.Context) error {
	cfg, listen, err := s.config()
	if err != nil {
		return err
	}
	digest := digestOf(cfg)
	if s.process == nil {
		s.process = s.w.adopt(s.processPath(), s.uid, s.place.Cgroup())
	}
	if s.process != nil && s.process.alive() && s.startedAs(digest) {
		if err := s.tell(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		s.w.log.Warn("a server does not answer; starting it again", "server", s.place.Name)
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	if err := s.launch(cfg, listen, digest); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.tell(ctx)
}

// digestOf says what a process was started with, without holding a secret of
// it.
func digestOf(cfg any) string {
	raw, err := json.Marshal(cfg)
	if err != nil {
		panic("warden: a server's config does not encode: " + err.Error()) // plain data: cannot happen
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

func (s *service) startedAs(digest string) bool {
	var st serviceState
	ok, err := readJSON(s.statePath(), &st)
	return err == nil && ok && st.Version == stateVersion && st.Digest == digest
}

func (s *service) launch(cfg any, listen []netip.AddrPort, digest string) error {
	if s.place.Name == layout.AuditName {
		heads, err := s.witnesses()
		if err != nil {
			return err
		}
		cfg = auditproto.Config{Data: insideData, Witnesses: heads}
	}
	cf, err := sealed(s.place.Name+"-config", cfg)
	if err != nil {
		return err
	}
	files := []*os.File{cf}
	defer func() { closeFiles(files) }()
	f, err := listenFile(s.place.OperatorSocket(), 0o600, 0)
	if err != nil {
		return err
	}
	files = append(files, f)
	for _, at := range listen {
		f, err := listenTCP(at)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	log, err := openLog(s.logPath())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	spec := serviceSpec(s.place, s.uid, s.w.programs)
	s.mu.Lock()
	spec.AcceptMissing = acceptedMechanisms(s.wants.accepted)
	s.mu.Unlock()
	if err := writeJSON(filepath.Join(s.place.Conf(), s.place.Name+".spec.json"), spec); err != nil {
		return err
	}
	if err := writeJSON(s.statePath(), serviceState{Version: stateVersion, Digest: digest}); err != nil {
		return err
	}
	p, err := cell.Start(spec, cell.Options{Cgroups: s.w.cgroups, Bare: s.w.bare, Stdout: log, Stderr: log, Files: files})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.place.Name, err)
	}
	s.process = started(p)
	return writeJSON(s.processPath(), s.process.identity)
}

// listenTCP makes a listening socket in the host's network namespace, which
// stays its own whoever holds it.
func listenTCP(at netip.AddrPort) (*os.File, error) {
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("%s is taken by another program: free it, or write another address into front.listen: %w", at, err)
		}
		return nil, fmt.Errorf("warden: %w", err)
	}
	f, err := ln.File()
	if err = errors.Join(err, ln.Close()); err != nil {
		return nil, fmt.Errorf("warden: %w", err)
	}
	return f, nil
}

// ready waits until the server answers.
func (s *service) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serviceReady)
	defer cancel()
	for {
		err := s.ask(ctx, hub.VerbMembers, struct{}{}, nil)
		switch {
		case err == nil:
			return nil
		case !s.process.alive():
			return fmt.Errorf("%s ended before it was ready; its log is %s", s.place.Name, s.logPath())
		case ctx.Err() != nil:
			return fmt.Errorf("%s was not ready after %s: %w; its log is %s", s.place.Name, serviceReady, err, s.logPath())
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// tell makes a running server know what it is to decide by, and exactly the members that are wanted, each by
// a socket that exists. The caller holds s.procs.
func (s *service) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	s.mu.Lock()
	want, policies := maps.Clone(s.wants.members), s.wants.topics
	s.mu.Unlock()
	if s.place.Name == layout.TopicsName { // before anybody is let in
		if err := s.ask(ctx, topics.VerbPolicy, topics.Policies{Teams: policies}, nil); err != nil {
			return err
		}
	}
	var have hub.Members
	if err := s.ask(ctx, hub.VerbMembers, struct{}{}, &have); err != nil {
		return err
	}
	for _, m := range have.Members {
		if want[m.Key()] != m {
			if err := s.ask(ctx, hub.VerbExpel, m, nil); err != nil {
				return err
			}
			continue
		}
		if problem, err := socketProblem(s.w.host.Agent(m.Team, m.Agent).ServiceSocket(s.place.Name), m.GatewayID); problem == "" && err == nil {
			delete(want, m.Key()) // it is as it should be
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if err := s.admit(ctx, want[key]); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) admit(ctx context.Context, m hub.Member) error {
	f, err := listenFile(s.w.host.Agent(m.Team, m.Agent).ServiceSocket(s.place.Name), 0o660, m.GatewayID)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return s.ask(ctx, hub.VerbAdmit, m, nil, f)
}

// ask asks the server one thing. out may be nil.
func (s *service) ask(ctx context.Context, verb string, body, out any, files ...*os.File) error {
	c, err := dialWire(ctx, s.place.OperatorSocket(), hub.OperatorProtocol, hub.OperatorVersion)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Unix().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.Send(1, verb, body, files...); err != nil {
		return err
	}
	m, got, err := c.Recv()
	closeFiles(got)
	if err != nil {
		return err
	}
	if out == nil && m.Verb != wire.VerbError {
		return nil
	}
	return decode(m, out)
}

// end ends the process, politely first, and everything else in its cgroup. The
// caller holds s.procs.
func (s *service) end(ctx context.Context) error {
	if s.process == nil {
		s.process = s.w.adopt(s.processPath(), s.uid, s.place.Cgroup())
	}
	if p := s.process; p != nil {
		if p.alive() {
			_ = unix.PidfdSendSignal(int(p.pidfd.Fd()), unix.SIGTERM, nil, 0)
			grace, cancel := context.WithTimeout(ctx, serviceGrace)
			p.wait(grace)
			cancel()
		}
		p.kill()
		s.process = nil
	}
	if err := s.w.killCgroup(s.place.Cgroup()); err != nil {
		return err
	}
	return tree.Remove(s.processPath())
}
