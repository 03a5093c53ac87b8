package warden

import (
	"context"
	"path/filepath"

	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// dead says why an agent does not run that should; "" when it is as it was asked
// for: stopped, fenced, or at the end of its task.
func (a *agentRun) dead(ctx context.Context) string {
	a.mu.Lock()
	want, problem := a.want, a.problem
	a.mu.Unlock()
	if !want || a.fence.Load() != nil {
		return ""
	}
	for _, c := range a.containers(ctx) {
		if c.Name == runtimeName && a.Want.Mode == team.ModeTask && c.Exit != nil {
			return ""
		}
	}
	if problem == "" {
		problem = "its runtime has no process"
	}
	return problem
}

// unattacked says why nothing can be attacked from somebody who was named.
func (w *Warden) unattacked(team, name string) error {
	if a, err := w.anyAgent(team, name); err == nil && a.Want.Guest {
		return badInput("guest "+name+" sleeps, so nothing can be attacked from it", "call one of its tools, which wakes it, or verify the others")
	}
	_, err := w.agent(team, name)
	return err
}

// expectedPlaces are the places of a running agent that its manifest says are there:
// see agentRun.folders, guest.guestFolders and the sockets that are made for its
// containers. One that is missing hides what it guards, so verify fails for it.
func (a *agentRun) expectedPlaces() []string {
	p := a.Place
	out := []string{p.Data(), p.Logs(), p.Control(), p.Conf(), p.GatewaySocket(), p.LauncherSocket(), p.ShimSocket(gatewayName)}
	if !a.Want.Guest {
		out = append(out, p.Home(), p.Workspace(), p.ShimSocket(runtimeName), p.DialerSocket(), p.PinSocket())
	} else if len(a.Want.Egress) > 0 {
		out = append(out, p.DialerSocket(), p.PinSocket())
	}
	if a.Want.Tools != nil {
		out = append(out, filepath.Join(p.Data(), "system.db"))
	}
	if a.Messages {
		out = append(out, p.AdapterSocket())
	}
	if a.CodeImage() != "" {
		out = append(out, p.ProcSocket())
	}
	for _, name := range a.Services {
		out = append(out, p.ServiceSocket(name))
	}
	for _, m := range a.Want.Mounts {
		out = append(out, m.Host)
	}
	return out
}

// expectedOf are the places of the warden's and of the host's servers.
func (w *Warden) expectedOf(t *teamRun) []string {
	out := []string{w.host.WardenSocket(), w.host.Ledger(), w.host.Manifest(t.name)}
	if t.adapter != nil {
		out = append(out, t.adapter.place.OperatorSocket(), t.adapter.place.AdapterTokens())
	}
	names := t.manifest.Services()
	if w.service(layout.ControlName) != nil {
		names = append(names, layout.ControlName)
	}
	for _, name := range names {
		s := w.host.Service(name)
		out = append(out, s.OperatorSocket(), s.Data())
	}
	return out
}
