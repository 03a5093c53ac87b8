//go:build vm

package inside

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/evidence"
	"bulkhead/internal/prove"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// held is where the kernel lists its profiles.
const held = "/sys/kernel/security/apparmor/profiles"

// withoutLabel are programs in which containers do not change to their profile
// (test/mutations), put there by test/vm.
const withoutLabel = "/srv/unlabelled"

// unlabelled brings the team up with programs that lack the measure, has prove
// and status notice, and installs the real ones again.
func unlabelled(t *testing.T, c stage.CLI) {
	t.Helper()
	stage.Sh(t, "install -m 755 "+withoutLabel+"/* /usr/local/bin/")
	defer stage.Sh(t, "install -m 755 /bulkhead/bin/* /usr/local/bin/")
	up := c.Try(t, "up") // whether it says so by its exit code is not the point
	for _, agent := range []string{"writer", "reviewer"} {
		k := stage.Container(t, c.Agent(t, agent), "runtime")
		if got, err := prove.LabelOf(k.PID); err != nil || got != "unconfined" {
			t.Errorf("%s has the label %q, %v: nothing is shown by who notices\n%s", agent, got, err, up)
		}
		pod := false
		for _, l := range c.Agent(t, agent).Layers {
			pod = pod || l.Layer == "pod" && !l.InForce && strings.Contains(l.Witness, "label")
		}
		if !pod {
			t.Errorf("status says nothing of %s", agent)
		}
	}
	r := c.Try(t, "prove", "--json")
	var report prove.Report
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil {
		t.Fatalf("no report: %v\n%s", err, r)
	}
	for _, s := range report.Statements {
		if s.Holds == (s.ID == "label") {
			t.Errorf("%s of %s holds: %t %q", s.ID, s.Agent, s.Holds, s.Against)
		}
	}
	if r.Exit != wire.ExitFailed {
		t.Errorf("prove ends with %d", r.Exit)
	}
	// The other layers refuse without it.
	v := c.Try(t, "verify", "--no-controls", "--json")
	var attacks evidence.Report
	if err := json.Unmarshal([]byte(v.Stdout), &attacks); err != nil {
		t.Fatalf("no report: %v\n%s", err, v)
	}
	if attacks.Succeeded != 0 || attacks.Unproven != 0 || attacks.Denied == 0 {
		t.Errorf("verify: %s", attacks.Text())
	}
	c.Run(t, "down", "--purge")
	stage.Sh(t, "systemctl stop bulkhead-warden 2>/dev/null || true")
}

func TestAppArmorConfinesContainers(t *testing.T) {
	c := install(t)
	c.Run(t, "up")
	whole(t, c)
	t.Run("each process has the profile of its container", func(t *testing.T) {
		for _, agent := range []string{"writer", "reviewer"} {
			for _, k := range c.Agent(t, agent).Containers {
				if k.Name != string(engine.RoleRuntime) && k.Name != string(engine.RoleGateway) {
					continue
				}
				want := fmt.Sprintf("bulkhead.pair.%s.%s", agent, k.Name)
				if got, err := prove.LabelOf(k.PID); err != nil || !prove.Enforced(got, want) {
					t.Errorf("process %d of %s/%s: %q, %v", k.PID, agent, k.Name, got, err)
				}
			}
		}
		if got := c.Run(t, "exec", "writer", "--", "cat", "/proc/self/attr/current"); got != "bulkhead.pair.writer.runtime (enforce)\n" {
			t.Errorf("what is started later has the label %q", got)
		}
	})
	t.Run("what an agent does every day works", func(t *testing.T) {
		got := c.Run(t, "exec", "writer", "--", "sh", "-c", `
for d in /workspace /tmp /home/agent; do echo x > $d/f && mv $d/f $d/g && rm $d/g && mkdir $d/d && rmdir $d/d && mkfifo $d/p && rm $d/p && echo $d; done
mkdir /workspace/own; cp /bin/busybox /workspace/own/ && /workspace/own/busybox echo ran; ln /workspace/own/busybox /workspace/hard && rm /workspace/hard
echo x > /dev/null; head -c 4 /dev/urandom | wc -c; (sleep 1 & kill -9 $!; wait) ; echo killed
wget -q -O - http://listed.example:8080/`)
		if got != "/workspace\n/tmp\n/home/agent\nran\n4\nkilled\nhello from outside\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("and nothing leads out of the profile", func(t *testing.T) {
		for _, word := range []string{"changeprofile unconfined", "changeprofile bulkhead.pair.reviewer.runtime", "changehat 0000000000000000^x", "permhat"} {
			r := c.Try(t, "exec", "writer", "--", "sh", "-c", "echo '"+word+"' > /proc/self/attr/current && cat /proc/self/attr/current")
			if r.Exit == 0 && !strings.HasPrefix(r.Stdout, "bulkhead.pair.writer.runtime") {
				t.Errorf("%s: %s", word, r)
			}
		}
		if r := c.Try(t, "exec", "writer", "--", "sh", "-c", "echo 'exec unconfined' > /proc/self/attr/exec && exec cat /proc/self/attr/current"); r.Exit == 0 && strings.Contains(r.Stdout, "unconfined") {
			t.Errorf("%s", r)
		}
	})
	t.Run("the kernel is read back", func(t *testing.T) {
		if r := c.Try(t, "prove"); r.Exit != wire.ExitOK || !strings.Contains(r.Stdout, "AppArmor profile that was made for it") {
			t.Errorf("prove: %s", r)
		}
	})
	t.Run("a profile that somebody takes away is missed", func(t *testing.T) {
		if err := os.WriteFile("/sys/kernel/security/apparmor/.remove", []byte("bulkhead.pair.writer.runtime"), 0); err != nil {
			t.Fatal(err)
		}
		if r := c.Try(t, "prove"); r.Exit == wire.ExitOK || !strings.Contains(r.Stdout+r.Stderr, "bulkhead.pair.writer.runtime") {
			t.Errorf("prove: %s", r)
		}
		for _, l := range c.Agent(t, "writer").Layers {
			if l.Layer == "pod" && l.InForce {
				t.Errorf("status: %s", l.Witness)
			}
		}
		c.Run(t, "restart", "writer")
		whole(t, c)
	})
	c.Run(t, "down", "--purge")
	stage.Sh(t, "systemctl stop bulkhead-warden 2>/dev/null || true")
	t.Run("that the label is not taken is noticed", func(t *testing.T) { unlabelled(t, c) })
	if got := stage.Sh(t, "grep '^bulkhead' "+held+" || true"); got != "" {
		t.Errorf("left in the kernel: %s", got)
	}
}
