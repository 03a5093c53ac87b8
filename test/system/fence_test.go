package system

import (
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// A fenced agent sends nothing, does nothing and keeps what it had in memory,
// whatever happens to the warden, until it is released.
func TestFence(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		c.Run(t, "up")
		// A connection that stands, and a process that counts.
		c.Run(t, "exec", "writer", "--", "sh", "-c", `
(while :; do echo x; done > /dev/null) &
cd /workspace; i=0; (while :; do i=$((i+1)); echo $i > count; sleep 0.05; done) > /dev/null 2>&1 &
sleep 0.2`)
		counts := func() int {
			n, _ := strconv.Atoi(strings.TrimSpace(stage.Sh(t, "cat /var/lib/bulkhead/teams/pair/agents/writer/runtime/workspace/count")))
			return n
		}
		stage.Until(t, "the writer counts", func() bool { return counts() > 0 })
		was := stage.Container(t, c.Agent(t, "writer"), "runtime").PID

		// A run leaves places ready, in which the launcher has a thread.
		c.Run(t, "run", "writer", "--", "true")
		c.Run(t, "panic", "writer", "--why", "it is a test")
		a := c.Agent(t, "writer")
		for _, l := range a.Layers {
			if !l.InForce {
				t.Errorf("layer %s of a fenced agent: %s", l.Layer, l.Witness)
			}
		}
		for _, k := range a.Containers {
			if !k.Running {
				t.Errorf("the fenced agent's %s is down", k.Name)
			}
		}
		if a.State != "fenced" || a.Fence == nil || a.Fence.Why != "it is a test" || strings.Contains(a.Why, "but") {
			t.Errorf("status: %s, %s, %+v", a.State, a.Why, a.Fence)
		}
		stands := counts()
		if b := c.Agent(t, "reviewer"); b.State != "running" {
			t.Errorf("the reviewer is %s: %s", b.State, b.Why)
		}
		// The dialer's own id, which reached listed.example a moment ago.
		id := strconv.FormatUint(uint64(stage.Container(t, a, "dialer").HostID), 10)
		if out := stage.Sh(t, "setpriv --reuid "+id+" --clear-groups wget -q -T 2 -O - http://203.0.113.10:8080/ 2>&1 || echo refused"); !strings.Contains(out, "refused") {
			t.Errorf("the dialer's id reaches the world: %q", out)
		}
		for _, args := range [][]string{
			{"exec", "writer", "--", "true"}, {"run", "writer", "--", "true"}, {"restart", "writer"}, {"allow", "writer", "other.example:80", "--for", "1m"},
		} {
			if r := c.Try(t, args...); r.Exit != wire.ExitRefused || !strings.Contains(r.Stderr, "bulkhead release writer") {
				t.Errorf("%v: %s", args, r)
			}
		}
		c.Run(t, "up")
		kill9(t, wardens(t)...)
		c.Run(t, "up")
		stage.Until(t, "the reviewer runs", func() bool { return c.Agent(t, "reviewer").State == "running" })
		a = c.Agent(t, "writer")
		if pid := stage.Container(t, a, "runtime").PID; a.State != "fenced" || strings.Contains(a.Why, "but") || pid != was || counts() != stands {
			t.Errorf("after the warden's end: %s, %s; process %d was %d; it counted from %d to %d", a.State, a.Why, pid, was, stands, counts())
		}

		if r := c.Try(t, "prove"); r.Exit != wire.ExitFailed || !strings.Contains(r.Stdout, "the agent is fenced since ") || !strings.Contains(r.Stdout+r.Stderr, "bulkhead release writer") {
			t.Errorf("prove of a fenced agent: %s", r)
		}
		if r := c.Try(t, "release", "reviewer"); r.Exit != wire.ExitBadInput {
			t.Errorf("release of one that is not fenced: %s", r)
		}
		c.Run(t, "release", "writer")
		stage.Until(t, "it counts on", func() bool { return counts() > stands })
		if pid := stage.Container(t, c.Agent(t, "writer"), "runtime").PID; pid != was {
			t.Errorf("the runtime is another process: %d, was %d", pid, was)
		}
		if got := c.Run(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://listed.example:8080/"); got == "" {
			t.Error("nothing comes from listed.example after the release")
		}
		c.Run(t, "panic")
		c.Run(t, "down", "--purge")
	})
}
