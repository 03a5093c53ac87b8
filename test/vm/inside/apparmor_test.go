//go:build vm

package inside

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/prove"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// held is where the kernel lists its profiles.
const held = "/sys/kernel/security/apparmor/profiles"

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
	if got := stage.Sh(t, "grep '^bulkhead' "+held+" || true"); got != "" {
		t.Errorf("left in the kernel: %s", got)
	}
}
