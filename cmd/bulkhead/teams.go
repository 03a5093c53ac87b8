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
		return "", badInput("no team is up", "put a manifest in force with `sudo bulkhead up`")
	}
	sort.Strings(names)
	return "", badInput("several teams are up: "+terminal.Line(strings.Join(names, ", ")), "say which one with --team")
}

// teamToRemove is the team that is up, or with purge the one whose data is kept.
func (a *app) teamToRemove(ctx context.Context, purge bool) (string, error) {
	name, err := a.theTeam(ctx)
	if err == nil || !purge {
		return name, err
	}
	// A team that is up has this folder as well, so one folder is no choice.
	kept, globErr := filepath.Glob(filepath.Join(a.host.Team("*"), "agents"))
	if globErr != nil || len(kept) != 1 {
		return "", err
	}
	return filepath.Base(filepath.Dir(kept[0])), nil
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
