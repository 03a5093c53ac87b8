package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
	"bulkhead/test/mutations"
)

// modes opens each place that is an agent's or a server's alone on a host to
// others, in turn. That the warden names them all is for test/system to show.
func (j *judge) modes(ctx context.Context) ([]mutations.Noticed, error) {
	host := layout.Host{State: "/var/lib/mutants/state", Run: "/run/mutants-run", Etc: "/etc/mutants"}
	p, rt, gw := host.Agent("mutant", "a"), agent.IDs.Runtime(), agent.IDs.Gateway()
	audit, id := host.Service(layout.AuditName), quiet.IDs.Account
	one, server := agent, quiet
	one.Places = []prove.Place{
		{Path: p.Home(), UID: rt, GID: rt, Mode: 0o700},
		{Path: p.Workspace(), UID: rt, GID: rt, Mode: 0o700},
		{Path: p.Data(), UID: gw, GID: gw, Mode: 0o700},
		{Path: p.Logs(), Mode: 0o700},
		{Path: p.Control(), Mode: 0o700},
	}
	server.Places = []prove.Place{
		{Path: audit.Data(), UID: id, GID: id, Mode: 0o700},
		{Path: audit.Logs(), Mode: 0o700},
		{Path: audit.Control(), Mode: 0o700},
	}
	out, err := opened(ctx, one, "home", "workspace", "data of the gateway", "logs", "control sockets")
	if err != nil {
		return nil, err
	}
	more, err := opened(ctx, server, "data of a server (audit's log, control's keys)", "logs of a server", "root's socket of a server")
	return append(out, more...), err
}

// opened opens each place of one agent, which it makes first.
func opened(ctx context.Context, one prove.Agent, names ...string) ([]mutations.Noticed, error) {
	for _, l := range one.Places {
		if err := os.MkdirAll(filepath.Dir(l.Path), 0o755); err != nil { // #nosec G301 -- the leaf is closed
			return nil, err
		}
		if err := os.Mkdir(l.Path, l.Mode); err != nil {
			return nil, err
		}
		if err := os.Chown(l.Path, int(l.UID), int(l.GID)); err != nil {
			return nil, err
		}
	}
	var out []mutations.Noticed
	for i, l := range one.Places {
		n := mutations.Noticed{ID: "mode: the folder of " + names[i] + " is open to its owner alone", Verify: []string{}, Prove: []string{}}
		for _, mode := range []os.FileMode{l.Mode, 0o755} {
			if err := unix.Chmod(l.Path, uint32(mode)); err != nil {
				return nil, err
			}
			r, err := prove.Team(ctx, prove.Request{Team: "mutant", Table: "bulkhead", Agents: []prove.Agent{one}})
			if err != nil {
				return nil, err
			}
			open := slices.ContainsFunc(r.Statements, func(s prove.Statement) bool { return s.ID == "modes" && !s.Holds })
			if open && mode != l.Mode {
				n.Prove = append(n.Prove, "modes")
			}
			if open && mode == l.Mode {
				n.Start = "it does not hold to begin with"
			}
		}
		out = append(out, n)
		if err := unix.Chmod(l.Path, uint32(l.Mode)); err != nil {
			return nil, err
		}
	}
	return out, nil
}
