package warden

import (
	"errors"
	"maps"
	"os"
	"slices"

	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
)

// places are what is the adapter's alone: see adapterRun.found.
func (a *adapterRun) places() []prove.Place {
	return []prove.Place{
		{Path: a.place.State, Mode: 0o711},
		{Path: a.place.AdapterData(), UID: a.uid, GID: a.uid, Mode: 0o700},
		{Path: a.place.Logs(), Mode: 0o700},
		{Path: a.place.Run, Mode: 0o711},
		{Path: a.place.Control(), Mode: 0o700},
		{Path: a.place.AdapterTokens(), Mode: 0o600},
	}
}

// subject is the adapter as far as it is not for the kernel to say: its id, its
// cgroup, and whose sockets it has.
func (a *adapterRun) subject() (prove.Agent, error) {
	one := prove.Agent{Name: a.place.Name, Account: a.place.Account, IDs: layout.IDs{Account: a.uid}, Server: true, Places: a.places()}
	g, err := a.w.cgroups.Group(a.cgroup())
	if err != nil {
		return one, err
	}
	pids, err := g.Procs()
	if err != nil {
		return one, err
	}
	for _, pid := range pids {
		one.Processes = append(one.Processes, prove.Process{PID: pid, Role: engine.RoleAdapter})
	}
	one.Limits, err = boundsOf(g)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return one, err
	}
	a.mu.Lock()
	agents := maps.Clone(a.wants.agents)
	a.mu.Unlock()
	socket := func(path string, id uint32) {
		problem, err := socketProblem(path, id)
		if err != nil {
			problem = err.Error()
		}
		one.Sockets = append(one.Sockets, prove.Socket{Path: path, ID: id, Problem: problem})
	}
	for _, name := range slices.Sorted(maps.Keys(agents)) {
		socket(a.w.host.Agent(a.place.Team, name).AdapterSocket(), agents[name].GatewayID)
	}
	socket(a.place.OperatorSocket(), 0)
	return one, nil
}
