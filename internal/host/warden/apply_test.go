package warden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

func TestUpSaysWhomItStartsAndWhomItLeavesFenced(t *testing.T) {
	run := &teamRun{agents: map[string]*agentRun{}, state: teamState{Agents: map[string]agentState{}}}
	for name, a := range map[string]struct{ stopped, fenced bool }{
		"runs": {}, "stopped": {stopped: true}, "fenced": {fenced: true}, "both": {stopped: true, fenced: true},
	} {
		run.agents[name], run.state.Agents[name] = &agentRun{}, agentState{Stopped: a.stopped}
		if a.fenced {
			run.agents[name].fence.Store(&wire.Fence{})
		}
	}
	w := &Warden{teams: map[string]*teamRun{"pair": run}}
	for name, want := range map[string]wire.Change{
		"runs":    {Agent: "runs", Action: wire.ActionKeep},
		"stopped": {Agent: "stopped", Action: wire.ActionStart, Why: []string{"stopped by `bulkhead stop`"}},
		"fenced":  {Agent: "fenced", Action: wire.ActionKeep, Why: []string{"fenced, and left so"}},
		"both":    {Agent: "both", Action: wire.ActionKeep, Why: []string{"fenced, and left so"}},
	} {
		got := []wire.Change{{Agent: name, Action: wire.ActionKeep}}
		w.markStopped("pair", got)
		if got[0].Action != want.Action || strings.Join(got[0].Why, "|") != strings.Join(want.Why, "|") {
			t.Errorf("%s: %+v, not %+v", name, got[0], want)
		}
	}
}

func TestWhatTheHostLacksForAManifestSaysTheWayOut(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]*team.Agent{
		"no workspace":          {Workspace: filepath.Join(dir, "nosuch")},
		"a file as workspace":   {Workspace: file},
		"no such mount":         {Mounts: []team.Mount{{Host: "/nosuch"}}},
		"knowledge":             {Knowledge: "notes"},
		"an image not in store": {Image: "nosuch"},
	} {
		said := checkSources(a)
		if a.Image != "" {
			said = []string{checkRootfs("/nosuch", a).Error()}
		}
		if len(said) != 1 || !strings.Contains(said[0], "; to mend: ") || strings.Contains(said[0], "tree:") {
			t.Errorf("%s: %q", name, said)
		}
	}
}
