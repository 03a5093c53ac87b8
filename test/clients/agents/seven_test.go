package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
				workIsDone(t, c)
				c.Run(t, "down", "--purge")
				if _, err := os.Stat(filepath.Join("/var/lib/bulkhead/teams", "seven")); !os.IsNotExist(err) {
					t.Errorf("data of the team is left: %v", err)
				}
				stage.Leaves(t, before)
			}, option)
		})
	}
}

// workIsDone waits until each agent's script has ended well, and looks at what
// they said to one another.
func workIsDone(t *testing.T, c stage.CLI) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		left := map[string]string{}
		for _, a := range c.Status(t).Teams[0].Agents {
			for _, container := range a.Containers {
				if container.Name == "runtime" && (container.Exit == nil || *container.Exit != 0) {
					left[a.Agent] = a.State + " " + a.Why + "\n" + c.Run(t, "logs", a.Agent)
				}
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not done: %v\n%s", left, c.Run(t, "msg", "tail", "--all"))
		}
	}
	said := c.Run(t, "msg", "tail", "--all")
	for _, what := range []string{
		"orchestrator -> pm  task_assignment", "engineering -> pm  clarification", "engineering -> orchestrator  escalation",
		"orchestrator  policy_decision", "qa_validation -> engineering  rejected", "pm -> orchestrator  result",
	} {
		if !strings.Contains(said, what) {
			t.Errorf("nobody said %q:\n%s", what, said)
		}
	}
	if dead := c.Run(t, "dlq", "list"); !strings.Contains(dead, "no dead letters") {
		t.Errorf("dead letters:\n%s", dead)
	}
}
