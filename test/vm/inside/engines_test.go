//go:build vm

package inside

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/evidence"
	"bulkhead/internal/prove"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// TestTeamOfBothEngines is where Podman 5, crun and nothing but cgroup version
// 2 come together. What both engines must keep is in test/system.
func TestTeamOfBothEngines(t *testing.T) {
	c := install(t)
	both := strings.Replace(team, "    role: writes\n", "    role: writes\n    engine: podman\n", 1)
	if err := os.WriteFile("/srv/vm/team/bulkhead.yaml", []byte(both), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := stage.Sh(t, "podman --version"); !strings.HasPrefix(got, "podman version 5.") {
		t.Fatalf("this host has %s", got)
	}
	before := stage.Picture(t)
	c.Run(t, "up")
	whole(t, c)
	byPodman(t, c)
	egress(t, c)
	if r := c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://203.0.113.10:8081/"); r.Exit == 0 {
		t.Errorf("what is not listed was reached: %s", r)
	}
	if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "echo kept > /workspace/f; echo shared > /dev/shm/f; cat /workspace/f /dev/shm/f; ls -A /sys/fs/cgroup"); got != "kept\nshared\n" {
		t.Errorf("the writer sees %q", got)
	}
	t.Run("memory above 64 MiB is taken from the one who wants it", func(t *testing.T) {
		if r := c.Try(t, "exec", "writer", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1"); r.Exit != 137 {
			t.Errorf("dd with 100 MB: %s", r)
		}
	})
	t.Run("every attack is denied", func(t *testing.T) {
		r := c.Try(t, "verify", "--no-controls", "--json", "writer")
		var rep evidence.Report
		if err := json.Unmarshal([]byte(r.Stdout), &rep); err != nil {
			t.Fatalf("%v\n%s", err, r)
		}
		t.Logf("%d attacks, %d denied, %d succeeded, %d not run", rep.Attacks, rep.Denied, rep.Succeeded, rep.NotRun)
		if r.Exit != wire.ExitOK || rep.Denied == 0 || rep.Succeeded != 0 {
			t.Errorf("exit %d\n%s", r.Exit, r.Stderr)
		}
		for _, row := range rep.Rows {
			if row.Verdict != evidence.Denied {
				t.Errorf("%+v", row)
			}
		}
	})
	if r := c.Try(t, "prove"); r.Exit != wire.ExitOK {
		t.Errorf("prove: %s", r)
	}
	t.Run("a container that was killed comes back, with its files", func(t *testing.T) {
		was := stage.Container(t, c.Agent(t, "writer"), "runtime").PID
		stage.Sh(t, fmt.Sprintf("kill -9 %d", was))
		stage.Until(t, "another one runs", func() bool {
			a := c.Agent(t, "writer")
			k := stage.Container(t, a, "runtime")
			return a.State == "running" && k.Running && k.PID != was
		})
		whole(t, c)
		byPodman(t, c)
		egress(t, c)
		if got := c.Run(t, "exec", "writer", "--", "cat", "/workspace/f"); got != "kept\n" {
			t.Errorf("the file is %q", got)
		}
	})
	c.Run(t, "down", "--purge")
	stage.Leaves(t, before)
}

// byPodman fails the test unless Podman made both containers of the writer, and
// nothing of Podman is left beside them.
func byPodman(t *testing.T, c stage.CLI) {
	t.Helper()
	a := c.Agent(t, "writer")
	for _, name := range []string{"runtime", "gateway"} {
		pid := stage.Container(t, a, name).PID
		// One by the OCI profile, one by stage 2, one by the account cell.
		if got := stage.Sh(t, fmt.Sprintf("awk '/^(Seccomp_filters|NoNewPrivs|CapBnd)/{print $2}' /proc/%d/status", pid)); got != "0000000000000000\n1\n3\n" {
			t.Errorf("%s: capabilities, no_new_privs and seccomp filters are %q", name, got)
		}
		if label, err := prove.LabelOf(pid); err != nil || !prove.Enforced(label, "bulkhead.pair.writer."+name) {
			t.Errorf("%s has the label %q of AppArmor, %v", name, label, err)
		}
		if dir := group(t, pid); dir != "/sys/fs/cgroup/bulkhead/pair/writer/"+name {
			t.Errorf("%s is in %s", name, dir)
		}
	}
	if left := stage.Sh(t, "ps -eo args --no-headers | grep -e '[p]odman run' -e '[c]onmon' || true"); left != "" {
		t.Errorf("Podman left\n%s", left)
	}
}
