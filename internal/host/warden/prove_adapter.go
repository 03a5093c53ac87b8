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

// subject is the adapter as far as it is not for the kernel to say: its id, its
// cgroup, and whose sockets it has.
func (a *adapterRun) subject() (prove.Agent, error) {
	one := prove.Agent{Name: a.place.Name, Account: a.place.Account, IDs: layout.IDs{Account: a.uid}, Adapter: true}
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
