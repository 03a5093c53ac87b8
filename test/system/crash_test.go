package system

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// wardens lists the processes of the warden.
func wardens(t *testing.T) []int {
	t.Helper()
	var pids []int
	for _, f := range strings.Fields(stage.Sh(t, "pidof bulkhead-warden || true")) {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, n)
	}
	return pids
}

func kill9(t *testing.T, pids ...int) {
	t.Helper()
	for _, p := range pids {
		if p <= 1 {
			t.Fatalf("asked to kill process %d", p)
		}
		_ = unix.Kill(p, unix.SIGKILL) // it may have ended by itself
	}
}

// running fails the test unless every agent runs with every layer in force.
func running(t *testing.T, c stage.CLI) {
	t.Helper()
	for _, tm := range c.Status(t).Teams {
		if len(tm.Agents) != 2 {
			t.Errorf("team %s has %d agents, want 2", tm.Team, len(tm.Agents))
		}
		for _, a := range tm.Agents {
			if a.State != "running" {
				t.Errorf("%s is %s: %s", a.Agent, a.State, a.Why)
			}
		}
	}
}

// once fails the test when there is more than one of any process of an agent.
func once(t *testing.T) {
	t.Helper()
	// A second warden that an up was just starting when it was killed waits for
	// the lock, and leaves when it does not get it.
	stage.Until(t, "one warden is left", func() bool { return len(wardens(t)) == 1 })
	counts := stage.Sh(t, `
for i in $(ls /proc | grep -E '^[0-9]+$'); do
  { tr '\0' ' ' < /proc/$i/cmdline; } 2>/dev/null | grep -oE 'bulkhead-(warden|shim launcher|net (dialer|resolver)|serve gateway)' || true
done | sort | uniq -c`)
	want := map[string]string{
		"bulkhead-warden": "1", "bulkhead-shim launcher": "2", "bulkhead-net dialer": "2", "bulkhead-net resolver": "1", "bulkhead-serve gateway": "2",
	}
	for line := range strings.Lines(counts) {
		n, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		if want[what] != n {
			t.Errorf("%s of %q, want %s", n, what, want[what])
		}
	}
}

func TestKilledAnywhereTheNextUpEndsInTheSameState(t *testing.T) {
	eachEngine(t, func(t *testing.T, kind engine.Kind, c stage.CLI) {
		up, down := []int{5, 15, 30, 45, 60, 80, 100, 130, 160, 200, 260, 350}, []int{5, 20, 50, 100, 200, 400}
		if kind == engine.Podman {
			// What is the same up to a container's start is tried with cells; here
			// the kills fall into Podman's work.
			up, down = []int{100, 175, 250, 325, 400, 500, 700}, []int{20, 100}
		}
		before := stage.Picture(t)
		for _, after := range up {
			t.Run(fmt.Sprintf("up and warden killed after %d ms", after), func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				up := exec.CommandContext(ctx, filepath.Join(c.Bin, "bulkhead"), "up")
				up.Dir = c.Dir
				if err := up.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(after) * time.Millisecond)
				kill9(t, wardens(t)...)
				cancel() // kill -9 of up itself
				_ = up.Wait()
				c.Run(t, "up")
				running(t, c)
				once(t)
				// Every other round starts from nothing, the rest from what runs.
				if after%2 == 0 {
					c.Run(t, "down")
					stage.Leaves(t, before)
				}
			})
		}
		for _, after := range down {
			t.Run(fmt.Sprintf("down and warden killed after %d ms", after), func(t *testing.T) {
				c.Run(t, "up")
				ctx, cancel := context.WithCancel(t.Context())
				down := exec.CommandContext(ctx, filepath.Join(c.Bin, "bulkhead"), "down")
				down.Dir = c.Dir
				if err := down.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(after) * time.Millisecond)
				kill9(t, wardens(t)...)
				cancel()
				_ = down.Wait()
				c.Run(t, "up")
				running(t, c)
				once(t)
			})
		}
		c.Run(t, "down")
		stage.Leaves(t, before)
	})
}

// pids of every container of an agent that runs.
func pids(a wire.AgentStatus) map[string]int {
	out := map[string]int{}
	for _, c := range a.Containers {
		if c.Running {
			out[c.Name] = c.PID
		}
	}
	return out
}

func TestAgentsSurviveTheirWarden(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		c.Run(t, "up")
		was := map[string]map[string]int{}
		for _, n := range []string{"writer", "reviewer"} {
			was[n] = pids(c.Agent(t, n))
		}
		const get = "wget -q -O - http://listed.example:8080/"
		c.Run(t, "exec", "writer", "--", "sh", "-c", get)
		kill9(t, wardens(t)...)
		stage.Until(t, "the warden is gone", func() bool { return len(wardens(t)) == 0 })
		t.Run("status without a warden says so instead of guessing", func(t *testing.T) {
			if r := c.Try(t, "status"); r.Exit != wire.ExitNoWarden {
				t.Errorf("%s", r)
			}
		})
		c.Run(t, "up")
		for n, old := range was {
			for name, pid := range pids(c.Agent(t, n)) {
				if old[name] != pid {
					t.Errorf("%s of %s was process %d and now is %d", name, n, old[name], pid)
				}
			}
		}
		running(t, c)
		once(t)
		if got := c.Run(t, "exec", "writer", "--", "sh", "-c", get); got != "hello from outside\n" {
			t.Errorf("egress after the adoption: %q", got)
		}
		c.Run(t, "down")
	})
}

func TestEachProcessThatIsKilledComesBack(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		c.Run(t, "up")
		other := pids(c.Agent(t, "reviewer"))
		victims := map[string]func(a wire.AgentStatus) int{
			"runtime": func(a wire.AgentStatus) int { return stage.Container(t, a, "runtime").PID },
			"gateway": func(a wire.AgentStatus) int { return stage.Container(t, a, "gateway").PID },
			"dialer":  func(a wire.AgentStatus) int { return stage.Container(t, a, "dialer").PID },
			"launcher": func(a wire.AgentStatus) int {
				// The launcher is the parent of the containers.
				out := stage.Sh(t, fmt.Sprintf("awk '/^PPid/{print $2}' /proc/%d/status", stage.Container(t, a, "runtime").PID))
				n, err := strconv.Atoi(strings.TrimSpace(out))
				if err != nil {
					t.Fatal(err)
				}
				return n
			},
		}
		for name, find := range victims {
			t.Run(name, func(t *testing.T) {
				a := c.Agent(t, "writer")
				pid := find(a)
				kill9(t, pid)
				stage.Until(t, "the process is gone", func() bool { return unix.Kill(pid, 0) != nil })
				stage.Until(t, "the writer runs again", func() bool {
					now := c.Agent(t, "writer")
					return now.State == "running" && find(now) != pid
				})
				stage.Until(t, "its egress works again", func() bool {
					r := c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://listed.example:8080/")
					return r.Stdout == "hello from outside\n"
				})
			})
		}
		if now := pids(c.Agent(t, "reviewer")); fmt.Sprint(now) != fmt.Sprint(other) {
			t.Errorf("the other agent's processes changed from %v to %v", other, now)
		}
		once(t)
		c.Run(t, "down")
	})
}

func TestForeignFlushOfTheRulesIsRepaired(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		c.Run(t, "up")
		for _, cmd := range []string{"nft flush ruleset", "nft delete table inet bulkhead", "nft flush table inet bulkhead"} {
			t.Run(cmd, func(t *testing.T) {
				stage.Sh(t, cmd)
				stage.Until(t, "every layer is in force again", func() bool { return c.Agent(t, "writer").State == "running" })
				if got := c.Run(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://listed.example:8080/"); got != "hello from outside\n" {
					t.Errorf("egress after the repair: %q", got)
				}
			})
		}
		c.Run(t, "down")
	})
}
