package system

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// checked gives the first check that an operator who watches hears of.
func checked(t *testing.T, c stage.CLI) wire.Check {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "bulkhead"), "verify", "--watch", "--json")
	cmd.Dir = c.Dir
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	// The check that follows an up may be going on: its end comes first.
	for lines := json.NewDecoder(out); ; {
		var check wire.Check
		if err := lines.Decode(&check); err != nil {
			t.Fatal(err)
		}
		if check.Why == "watch" {
			return check
		}
	}
}

func unlimit(t *testing.T) {
	t.Helper()
	stage.Sh(t, `find /sys/fs/cgroup -path '*/writer/runtime/pids.max' | grep . | while read -r f; do echo max > "$f"; done`)
}

func TestDriftIsSaidAndFenced(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		c.Run(t, "up")
		running(t, c)
		if check := checked(t, c); len(check.Broken) != 0 || check.Held < 20 || check.Attacks == 0 || check.Problem != "" {
			t.Fatalf("the first check: %+v", check)
		}
		unlimit(t)
		limits := func(d wire.Drift) bool { return d.Agent == "writer" && d.Statement == "limits" }
		if check := checked(t, c); !slices.ContainsFunc(check.Broken, limits) || len(check.Fenced) != 0 {
			t.Fatalf("a limit is gone: %+v", check)
		}
		if text := c.Run(t, "metrics"); !strings.Contains(text, `bulkhead_drift{team="pair",agent="writer",statement="limits"} 1`) {
			t.Errorf("the metrics:\n%s", text)
		}
		if check := checked(t, c); !slices.ContainsFunc(check.Broken, limits) {
			t.Fatalf("the limit is still gone: %+v", check)
		}

		// The same under a manifest that wants the fence: its up is a change.
		write(t, c.Dir, strings.Replace(pair, "team: pair\n", "team: pair\nverify: {every: never, onDrift: fence}\n", 1))
		c.Run(t, "up")
		state := func(agent string) string { return c.Agent(t, agent).State }
		stage.Until(t, "writer is fenced", func() bool { return state("writer") == "fenced" })
		if got := state("reviewer"); got != "running" {
			t.Errorf("the other agent is %s", got)
		}
		stage.Until(t, "the fence is counted", func() bool {
			return strings.Contains(c.Run(t, "metrics"), `bulkhead_fenced{team="pair",agent="writer"} 1`)
		})
		c.Run(t, "release", "writer")
		c.Run(t, "restart", "writer") // a new start has its limits again
		running(t, c)
		if check := checked(t, c); len(check.Broken) != 0 {
			t.Errorf("after a new start: %+v", check)
		}
		c.Run(t, "down")
	})
}
