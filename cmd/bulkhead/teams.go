package main

import (
	"context"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"bulkhead/internal/layout"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// noTeamIsUp begins the error of a command that needs a team.
const noTeamIsUp = "no team is up"

// theTeam gives the team that a command is about: --team, or the only one that
// runs.
func (a *app) theTeam(ctx context.Context) (string, error) {
	if a.team != "" {
		return a.team, nil
	}
	names, ok := a.runningTeams()
	if !ok {
		var res wire.StatusResult
		if err := a.client().Call(ctx, wire.VerbStatus, wire.TeamRequest{}, &res, nil); err != nil {
			return "", err
		}
		for _, t := range res.Teams {
			names = append(names, t.Team)
		}
	}
	switch len(names) {
	case 1:
		return names[0], nil
	case 0:
		return "", badInput(noTeamIsUp, "put a manifest in force with `sudo bulkhead up`")
	}
	sort.Strings(names)
	return "", badInput("several teams are up: "+terminal.Line(strings.Join(names, ", ")), "say which one with --team")
}

// runningTeams lists the teams by their folders, which saves asking the warden
// to read the whole kernel's state. It gives false when that cannot be told.
func (a *app) runningTeams() ([]string, bool) {
	if a.socket != layout.Default().WardenSocket() {
		return nil, false
	}
	entries, err := os.ReadDir(filepath.Join(a.host.Run, "teams"))
	if err != nil || len(entries) != 1 {
		return nil, false
	}
	return []string{entries[0].Name()}, true
}
