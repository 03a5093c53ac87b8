package system

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// buildHostile builds the attacks beside the programs. Call it before
// throwaway.Run.
func buildHostile(t *testing.T) string {
	t.Helper()
	bin := stage.Build(t)
	if throwaway.Inside() {
		return bin
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin+"/", "./hostile")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// hostileHost is host with the attacks in the agents' image.
func hostileHost(t *testing.T, bin string) stage.CLI {
	t.Helper()
	c := host(t, bin)
	stage.Sh(t, "cp "+bin+"/hostile /srv/rootfs/bin/hostile")
	return c
}

// eachHostile runs f in a host of its own for each engine, with a manifest that is not
// in force yet and agents that have the program hostile.
func eachHostile(t *testing.T, manifest func(engine.Kind) string, f func(t *testing.T, c stage.CLI)) {
	t.Helper()
	for _, kind := range engines {
		t.Run(string(kind), func(t *testing.T) {
			if kind == engine.Podman {
				needPodman(t)
			}
			bin := buildHostile(t)
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
				c := hostileHost(t, bin)
				write(t, c.Dir, manifest(kind))
				f(t, c)
			})
		})
	}
}

// while runs f while the team is up, and holds that nothing of it is left.
func while(t *testing.T, c stage.CLI, f func(t *testing.T, c stage.CLI)) {
	t.Helper()
	before := stage.Picture(t)
	c.Run(t, "up")
	f(t, c)
	c.Run(t, "down", "--purge")
	stage.Leaves(t, before)
}

// in fails the test when the command takes longer than any of its kind may: it
// would hold up every other team.
func in(t *testing.T, c stage.CLI, args ...string) stage.Result {
	t.Helper()
	done := make(chan stage.Result, 1)
	go func() { done <- c.Try(t, args...) }() // bounded by Try's own limit
	select {
	case r := <-done:
		return r
	case <-time.After(60 * time.Second):
		t.Fatalf("bulkhead %v does not end", args)
	}
	return stage.Result{}
}

// background starts bulkhead and leaves it running.
func background(t *testing.T, c stage.CLI, args ...string) *exec.Cmd {
	t.Helper()
	cmd, _ := backgroundLine(t, c, false, args...)
	return cmd
}

// backgroundLine is background that waits for the first line of output.
func backgroundLine(t *testing.T, c stage.CLI, wait bool, args ...string) (cmd *exec.Cmd, line string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd = exec.CommandContext(ctx, filepath.Join(c.Bin, "bulkhead"), args...) // #nosec G204 -- the test's own words
	cmd.Dir = c.Dir
	var out io.Reader
	if wait {
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		out = pipe
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	if wait {
		var err error
		if line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	return cmd, line
}

func TestAnAgentThatGivesItsOutputAwayHoldsNobodyUp(t *testing.T) {
	bin := buildHostile(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := hostileHost(t, bin)
		write(t, c.Dir, strings.Replace(pair, "echo hello from writer; exec sleep 100000", "exec hostile hold-log /run/bulkhead/gateway.sock gateway", 1))
		c.Run(t, "up")
		stage.Until(t, "the gateway holds the writer's log", func() bool { return strings.Contains(c.Run(t, "logs", "writer"), "held") })
		for _, args := range [][]string{{"restart", "writer"}, {"stop", "writer"}, {"up"}, {"down", "--purge"}} {
			if r := in(t, c, args...); r.Exit != 0 {
				t.Errorf("%v: %s", args, r)
			}
		}
	})
}

func TestAgentsHaveTheirOwnShareOfTheKernel(t *testing.T) {
	bin := buildHostile(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := hostileHost(t, bin)
		c.Run(t, "up")
		seen := map[int]string{0: "root"}
		for _, agent := range []string{"writer", "reviewer"} {
			for _, name := range []string{"runtime", "gateway"} {
				pid := stage.Container(t, c.Agent(t, agent), name).PID
				uid := ownerOf(t, pid)
				if who, ok := seen[uid]; ok && who != agent {
					t.Errorf("the user namespace of %s's %s belongs to id %d, like that of %s: what one uses up the other lacks", agent, name, uid, who)
				}
				seen[uid] = agent
				if out := stage.Sh(t, "ps -eo uid | grep -cw "+strconv.Itoa(uid)+" || true"); strings.TrimSpace(out) != "0" {
					t.Errorf("%s processes have id %d, which owns user namespaces: they have every capability in them", strings.TrimSpace(out), uid)
				}
			}
		}
		greedy := background(t, c, "exec", "writer", "--", "hostile", "inotify")
		time.Sleep(500 * time.Millisecond)
		if out := c.Run(t, "exec", "reviewer", "--", "hostile", "inotify"); strings.Contains(out, "took 0") {
			t.Errorf("beside a greedy agent: %s", out)
		}
		_ = greedy.Process.Kill()
		c.Run(t, "down", "--purge")
	})
}

// ownerOf asks which id a process's user namespace belongs to.
func ownerOf(t *testing.T, pid int) int {
	t.Helper()
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	uid, err := unix.IoctlGetInt(int(f.Fd()), unix.NS_GET_OWNER_UID)
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

func TestWhatAnOperatorStartsEndsWithTheOperator(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		c.Run(t, "up")
		for i, k := range []struct {
			verb string
			sig  os.Signal
		}{{"exec", os.Kill}, {"run", os.Kill}, {"run", os.Interrupt}} {
			sleep := "sleep " + strconv.Itoa(54320+i)
			alive := func() bool { return strings.TrimSpace(stage.Sh(t, "pgrep -cx -f '"+sleep+"' || true")) != "0" }
			cmd := background(t, c, k.verb, "writer", "--", "sleep", strconv.Itoa(54320+i))
			stage.Until(t, sleep+" runs", alive)
			if err := cmd.Process.Signal(k.sig); err != nil {
				t.Fatal(err)
			}
			stage.Until(t, k.verb+" has ended by "+k.sig.String(), func() bool { return !alive() })
		}
		c.Run(t, "down", "--purge")
	})
}

func TestAStoppedProbeHoldsNobodyUp(t *testing.T) {
	bin := buildHostile(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := hostileHost(t, bin)
		c.Run(t, "up")
		backgroundLine(t, c, true, "exec", "writer", "--", "hostile", "freeze")
		if r := c.Try(t, "verify", "--no-controls", "writer"); r.Exit != 1 {
			t.Errorf("attacks that did not end prove nothing: %s", r)
		}
		if r := in(t, c, "down", "--purge"); r.Exit != 0 {
			t.Errorf("%s", r)
		}
	})
}

// Only root's own room, not the file system's, may decide whether agents can be
// ended on a host whose disk somebody filled: a tmpfs keeps none.
func TestAgentsOnAHostWithAFullDiskAreEndedAndPurged(t *testing.T) {
	bin := buildHostile(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := hostileHost(t, bin)
		stage.Sh(t, "mount -t tmpfs -o size=400m,mode=0755 tmpfs /var/lib/bulkhead")
		before := stage.Picture(t)
		c.Run(t, "up")
		if out := c.Run(t, "exec", "writer", "--", "hostile", "fill", "/workspace/big"); out != "full\n" {
			t.Errorf("fill says %q", out)
		}
		stage.Sh(t, bin+"/hostile fill /var/lib/bulkhead/ballast")
		running(t, c)
		// What an agent may write was reserved for it.
		if r := c.Try(t, "exec", "reviewer", "--", "dd", "if=/dev/zero", "of=/workspace/data", "bs=1M", "count=20", "conv=fsync"); r.Exit != 0 {
			t.Errorf("on a full host an agent cannot write what is reserved for it: %s", r)
		}
		kill9(t, wardens(t)...) // its successor starts on a full disk
		c.Try(t, "up")
		c.Run(t, "stop", "writer")
		if a := c.Agent(t, "writer"); a.State != "stopped" {
			t.Errorf("writer is %s: %s", a.State, a.Why)
		}
		c.Run(t, "down")
		stage.Leaves(t, before)
		if r := c.Try(t, "up"); r.Exit != 2 {
			t.Errorf("a full disk: %s", r)
		}
		stage.Ended(t)
		c.Run(t, "down", "--purge") // what down kept
		if left := stage.Sh(t, "ls /var/lib/bulkhead/teams 2>/dev/null || true"); left != "" {
			t.Errorf("purge left %s", left)
		}
		stage.Sh(t, "rm /var/lib/bulkhead/ballast")
		c.Run(t, "up")
		running(t, c)
		c.Run(t, "down", "--purge")
	})
}
