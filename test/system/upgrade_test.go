package system

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// processes are every process of the team's agents, by agent and container.
func processes(t *testing.T, c stage.CLI) (out []string) {
	t.Helper()
	for _, a := range c.Status(t).Teams[0].Agents {
		for _, x := range a.Containers {
			out = append(out, fmt.Sprintf("%s/%s %d", a.Agent, x.Name, x.PID))
		}
	}
	slices.Sort(out)
	return out
}

// An upgrade replaces the warden. Agents, their gateways and the adapter go on,
// each with the build that it was started with, until somebody restarts them.
func TestAWardenOfAnotherBuildAdoptsRunningAgents(t *testing.T) {
	stage.Build(t)
	newer := stage.BuildAs(t, "newer")
	talking(t, engines, func(t *testing.T, c stage.CLI) {
		write(t, c.Dir, strings.Replace(readManifest(t, c), "    rootfs: /srv/rootfs\n", "    tools: {allow: [mem]}\n    rootfs: /srv/rootfs\n", 1))
		c.Run(t, "up")
		sent(t, c, "lead", "--to", "worker", "--type", "note", `"before"`)
		tool := func(name, in string) string {
			t.Helper()
			return c.Run(t, "exec", "lead", "--", "/.bulkhead/bulkhead-shim", "tool", "call", name, in)
		}
		tool("mem_set", `{"key":"a","value":"before"}`)
		was, older := processes(t, c), c.Status(t)
		if older.Build == "" || older.Build == "newer" || len(older.Programs) != 16 {
			t.Fatalf("the first warden is of build %q, its programs are %q", older.Build, older.Programs)
		}

		// As systemd stops a service: agents are left alone.
		for _, pid := range wardens(t) {
			if err := unix.Kill(pid, unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		stage.Until(t, "the older warden has ended", func() bool { return len(wardens(t)) == 0 })
		n := stage.CLI{Bin: newer, Dir: c.Dir}
		if out := n.Run(t, "up"); strings.Contains(out, "restart") {
			t.Errorf("the newer warden's up says:\n%s", out)
		}
		st := n.Status(t)
		if st.Build != "newer" || st.Programs == older.Programs {
			t.Errorf("status says that the warden is of build %q, its programs are %q, were %q", st.Build, st.Programs, older.Programs)
		}
		for _, a := range st.Teams[0].Agents {
			if a.State != "running" || a.Programs != older.Programs {
				t.Errorf("%s is %s (%s), runs with %q, want %q", a.Agent, a.State, a.Why, a.Programs, older.Programs)
			}
		}
		if out := n.Run(t, "status"); !strings.Contains(out, "Warden of build newer\n") || !strings.Contains(out, "AGENT`: lead, worker, comm_adapter\n") {
			t.Errorf("a person is not told which builds run:\n%s", out)
		}
		if now := processes(t, n); !slices.Equal(now, was) {
			t.Errorf("processes were\n%v\nand are\n%v", was, now)
		}
		if got := received(t, n, "worker", "--wait", "10s", "--ack"); len(got) != 1 || string(got[0].Body) != `"before"` {
			t.Errorf("%+v", got)
		}
		sent(t, n, "worker", "--to", "lead", "--type", "note", `"after"`)
		if got := received(t, n, "lead", "--wait", "10s", "--ack"); len(got) != 1 || string(got[0].Body) != `"after"` {
			t.Errorf("%+v", got)
		}
		if got := tool("mem_get", `{"key":"a"}`); !strings.Contains(got, `"before"`) {
			t.Error(got)
		}

		for _, agent := range []string{"lead", "worker", layout.AdapterName} {
			n.Run(t, "restart", agent)
			stage.Until(t, agent+" runs with the newer programs", func() bool {
				a := n.Agent(t, agent)
				return a.State == "running" && a.Programs == st.Programs
			})
		}
		sent(t, n, "lead", "--to", "worker", "--type", "note", `"newer"`)
		if got := received(t, n, "worker", "--wait", "10s", "--ack"); len(got) != 1 {
			t.Errorf("%+v", got)
		}
		if got := tool("mem_get", `{"key":"a"}`); !strings.Contains(got, `"before"`) {
			t.Error(got)
		}
	})
}

// A service that crashes is started again a few times and then is left to its
// operator, who is told in words; nobody else is concerned.
func TestAServiceThatGoesOnCrashingEndsAsFailedAndSaysSo(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		write(t, c.Dir, strings.Replace(pair, "echo hello from writer; exec sleep 100000", "echo again >> /home/agent/starts; sleep 1; exit 9", 1))
		c.Run(t, "up")
		other := pids(c.Agent(t, "reviewer"))
		var a wire.AgentStatus
		for range 6 { // 15.5 s of pauses and six starts
			if a = c.Agent(t, "writer"); a.State == "failed" {
				break
			}
			time.Sleep(5 * time.Second)
		}
		if a.State != "failed" || a.Restarts != 5 || !strings.Contains(a.Why, "restarted 5 times in 5m0s and given up; the last time because: ") || !strings.Contains(a.Why, "`bulkhead restart writer`") {
			t.Errorf("writer is %s after %d restarts: %s", a.State, a.Restarts, a.Why)
		}
		if out := c.Run(t, "status"); !strings.Contains(out, "failed") || !strings.Contains(out, "writer: restarted 5 times in 5m0s and given up") {
			t.Errorf("a person is told:\n%s", out)
		}
		if now := pids(c.Agent(t, "reviewer")); fmt.Sprint(now) != fmt.Sprint(other) {
			t.Errorf("the other agent's processes changed from %v to %v", other, now)
		}
		if n := stage.Sh(t, "wc -l < /var/lib/bulkhead/teams/pair/agents/writer/runtime/home/starts"); strings.TrimSpace(n) != "6" {
			t.Errorf("it was started %s times", n)
		}
		// Mended and restarted, it is judged anew.
		write(t, c.Dir, pair)
		c.Run(t, "up")
		running(t, c)
		c.Run(t, "down")
	})
}
