package warden

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	auditproto "bulkhead/internal/audit/protocol"
	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
)

// servicesOf are the host's servers on which a team relies: those that its
// manifest names, and control wherever it runs, whose tokens every gateway takes.
func (w *Warden) servicesOf(t *teamRun) []*service {
	var out []*service
	for _, name := range layout.ServiceNames() {
		s := w.service(name)
		if s != nil && (name == layout.ControlName || slices.Contains(t.manifest.Services(), name)) {
			out = append(out, s)
		}
	}
	return out
}

// places are what is the server's alone: see service.folders.
func (s *service) places() []prove.Place {
	p := s.place
	out := []prove.Place{
		{Path: p.State, Mode: 0o711},
		{Path: p.Data(), UID: s.uid, GID: s.uid, Mode: 0o700},
		{Path: p.Logs(), Mode: 0o700},
		{Path: p.Run, Mode: 0o711},
		{Path: p.Control(), Mode: 0o700},
		{Path: p.Tokens(), Mode: 0o600},
	}
	switch p.Name {
	case layout.AuditName:
		out = append(out, prove.Place{Path: s.headsPath(), Mode: 0o600})
		for _, name := range auditproto.Files() {
			out = append(out, prove.Place{Path: filepath.Join(p.Data(), name), UID: s.uid, GID: s.uid, Mode: 0o600})
		}
	case layout.ControlName:
		out = append(out, prove.Place{Path: filepath.Join(p.Data(), "keys"), UID: s.uid, GID: s.uid, Mode: 0o700})
		out = append(out, prove.Place{Path: filepath.Join(p.Data(), "tokens.jsonl"), UID: s.uid, GID: s.uid, Mode: 0o600})
	}
	return out
}

// pids are its processes; none: it does not run.
func (s *service) pids() ([]int, error) {
	g, err := s.w.cgroups.Group(s.place.Cgroup())
	if err != nil {
		return nil, err
	}
	pids, err := g.Procs()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return pids, err
}

// subject is the server as far as it is not for the kernel to say.
func (s *service) subject() (prove.Agent, error) {
	one := prove.Agent{Name: s.place.Name, Account: s.place.Account, IDs: layout.IDs{Account: s.uid}, Server: true, Places: s.places()}
	g, err := s.w.cgroups.Group(s.place.Cgroup())
	if err != nil {
		return one, err
	}
	pids, err := s.pids()
	if err != nil {
		return one, err
	}
	for _, pid := range pids {
		one.Processes = append(one.Processes, prove.Process{PID: pid, Role: engine.RoleService})
	}
	one.Limits, err = boundsOf(g)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return one, err
	}
	s.mu.Lock()
	members := maps.Clone(s.wants.members)
	if s.place.Name == layout.FrontName {
		one.Listen = slices.SortedFunc(maps.Keys(s.wants.fronts), netip.AddrPort.Compare)
	}
	s.mu.Unlock()
	socket := func(path string, id uint32) {
		problem, err := socketProblem(path, id)
		if err != nil {
			problem = err.Error()
		}
		one.Sockets = append(one.Sockets, prove.Socket{Path: path, ID: id, Problem: problem})
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		m := members[key]
		socket(s.w.host.Agent(m.Team, m.Agent).ServiceSocket(s.place.Name), m.GatewayID)
	}
	socket(s.place.OperatorSocket(), 0)
	return one, nil
}
