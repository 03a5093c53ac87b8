package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

func TestTheTeamOfSevenComesUpAndLeavesNothing(t *testing.T) {
	members := []string{"comm_adapter", "engineering", "growth_gtm", "orchestrator", "pm", "qa_validation", "research_design"}
	for _, kind := range []engine.Kind{engine.Cell, engine.Podman} {
		t.Run(string(kind), func(t *testing.T) {
			needEngine(t, kind)
			bin, option := prepare(t, "base")
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
				importImages(t, bin, "base")
				c := example(t, bin, "seven", kind)
				before := stage.Picture(t)
				c.Run(t, "up")
				var names []string
				ids := map[uint32]string{}
				for _, a := range c.Status(t).Teams[0].Agents {
					names = append(names, a.Agent)
					if a.State != "running" {
						t.Errorf("%s is %s: %s", a.Agent, a.State, a.Why)
					}
					for _, l := range a.Layers {
						if !l.InForce {
							t.Errorf("%s: layer %s is not in force: %s", a.Agent, l.Layer, l.Witness)
						}
					}
					for _, container := range a.Containers {
						if other, shared := ids[container.HostID]; shared {
							t.Errorf("%s/%s has the id of %s", a.Agent, container.Name, other)
						}
						ids[container.HostID] = a.Agent + "/" + container.Name
					}
				}
				slices.Sort(names)
				if !slices.Equal(names, members) {
					t.Errorf("the team is %v", names)
				}
				for _, name := range members {
					stage.Until(t, name+" works", func() bool {
						return strings.Contains(c.Run(t, "logs", name), name+": ") && strings.Contains(c.Run(t, "exec", name, "--", "cat", "/workspace/last"), name+": ")
					})
				}
				// Nobody is reached by anybody: not by name, not by address.
				if r := c.Try(t, "exec", "pm", "--", "curl", "-fsS", "--max-time", "5", "http://engineering/"); r.Exit == 0 {
					t.Errorf("pm reached engineering: %s", r)
				}
				c.Run(t, "down", "--purge")
				if _, err := os.Stat(filepath.Join("/var/lib/bulkhead/teams", "seven")); !os.IsNotExist(err) {
					t.Errorf("data of the team is left: %v", err)
				}
				if left := stage.Differ(before, stage.Picture(t)); len(left) > 0 {
					t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
				}
			}, option)
		})
	}
}
