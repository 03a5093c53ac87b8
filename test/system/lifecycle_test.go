// Package system tests Bulkhead as its operator meets it: the built programs,
// a real host (a throwaway one), real processes, nothing replaced.
package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/podman"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// pair is a team of two on a busybox root file system. The name listed.example
// stands for the world outside.
const pair = `apiVersion: bulkhead/v1
team: pair
defaults:
  limits: {memory: 256Mi, cpu: 1, pids: 64, disk: 32Mi}
agents:
  writer:
    role: writes
    rootfs: /srv/rootfs
    command: [/bin/sh, -c, 'echo hello from writer; exec sleep 100000']
    mode: service
    egress: ['listed.example:8080']
    hosts: {listed.example: 203.0.113.10}
  reviewer:
    role: reads
    rootfs: /srv/rootfs
    mode: session
    command: [/bin/sh]
`

// engines are those that every test of a team's life runs with.
var engines = []engine.Kind{engine.Cell, engine.Podman}

// eachEngine runs f in a host of its own for each engine, with both agents of
// [pair] on that engine.
func eachEngine(t *testing.T, f func(t *testing.T, kind engine.Kind, c stage.CLI)) {
	t.Helper()
	for _, kind := range engines {
		t.Run(string(kind), func(t *testing.T) {
			if kind == engine.Podman {
				needPodman(t)
			}
			bin := stage.Build(t)
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
				c := host(t, bin)
				write(t, c.Dir, withEngine(kind))
				f(t, kind, c)
			})
		})
	}
}

func needPodman(t *testing.T) {
	t.Helper()
	if err := podman.Installed(""); err != nil {
		t.Skipf("needs rootless Podman: apt-get install podman crun runc: %v", err)
	}
}

func withEngine(kind engine.Kind) string {
	return strings.Replace(pair, "defaults:\n", "defaults:\n  engine: "+string(kind)+"\n", 1)
}

// host prepares a throwaway host: programs, root file system, manifest, and a
// web server at each of the two addresses of the world.
func host(t *testing.T, bin string) stage.CLI {
	t.Helper()
	stage.Rootfs(t, "/srv/rootfs")
	dir := "/srv/team"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, pair)
	stage.Sh(t, `
mkdir -p /srv/www; echo "hello from outside" > /srv/www/index.html
for a in 203.0.113.10 203.0.113.11; do busybox httpd -p $a:8080 -h /srv/www; done`)
	return stage.CLI{Bin: bin, Dir: dir}
}

func write(t *testing.T, dir, manifest string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "bulkhead.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestATeamComesUpWorksAndLeavesNothing(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ engine.Kind, c stage.CLI) {
		before := stage.Picture(t)
		c.Run(t, "up")
		for _, name := range []string{"writer", "reviewer"} {
			a := c.Agent(t, name)
			if a.State != "running" {
				t.Errorf("%s is %s: %s", name, a.State, a.Why)
			}
			for _, l := range a.Layers {
				if !l.InForce {
					t.Errorf("%s: layer %s is not in force: %s", name, l.Layer, l.Witness)
				}
			}
		}
		stage.Until(t, "the writer's greeting is in its log", func() bool {
			return strings.Contains(c.Run(t, "logs", "writer"), "hello from writer")
		})
		t.Run("exec runs inside and passes the exit code on", func(t *testing.T) {
			if got := c.Run(t, "exec", "writer", "--", "id", "-u"); got != "1000\n" {
				t.Errorf("id -u says %q", got)
			}
			if r := c.Try(t, "exec", "writer", "--", "sh", "-c", "exit 7"); r.Exit != 7 {
				t.Errorf("%s", r)
			}
		})
		t.Run("a listed name is reached by its name, directly and by the proxy", func(t *testing.T) {
			for _, cmd := range []string{
				"env -u http_proxy -u HTTP_PROXY wget -q -O - http://listed.example:8080/",
				"wget -q -O - http://listed.example:8080/",
			} {
				if got := c.Run(t, "exec", "writer", "--", "sh", "-c", cmd); got != "hello from outside\n" {
					t.Errorf("%s: %q", cmd, got)
				}
			}
		})
		t.Run("what is not listed is refused, and the denial says how to allow it", func(t *testing.T) {
			r := c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://unlisted.example:8080/")
			if r.Exit == 0 {
				t.Errorf("%s", r)
			}
			stage.Until(t, "the denial is in the gateway's log", func() bool {
				log := c.Run(t, "logs", "writer", "--container", "gateway")
				return strings.Contains(log, "egress.not_listed") && strings.Contains(log, `unlisted.example:8080`)
			})
			for _, cmd := range []string{"nc -w 2 203.0.113.11 8080", "nc -w 2 203.0.113.10 8080", "nc -w 2 127.0.0.1 22"} {
				if r := c.Try(t, "exec", "reviewer", "--", "sh", "-c", "echo | "+cmd); r.Exit == 0 {
					t.Errorf("%s: %s", cmd, r)
				}
			}
		})
		t.Run("a one-off command runs in a cell of its own", func(t *testing.T) {
			if got := c.Run(t, "run", "writer", "--", "id", "-u"); got != "3000\n" {
				t.Errorf("id -u says %q", got)
			}
			for range 2 { // in a new cell and in a prepared one
				for argv, want := range map[string]int{"nosuch": 127, "/bin/nosuch": 127, "/etc": 126} {
					for _, verb := range []string{"run", "exec"} {
						if r := c.Try(t, verb, "writer", "--", argv); r.Exit != want || !strings.Contains(r.Stderr, "to mend:") {
							t.Errorf("%s %s: %s", verb, argv, r)
						}
					}
				}
			}
		})
		t.Run("restart makes new containers, stop ends them", func(t *testing.T) {
			own := func() {
				t.Helper()
				if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "/home/agent/bin/echo kept; /home/agent/bin/script"); got != "kept\nby a script\n" {
					t.Errorf("a program of the agent's own in its home says %q", got)
				}
			}
			c.Run(t, "exec", "writer", "--", "sh", "-c", `mkdir ~/bin; cp /bin/busybox ~/bin/echo; printf '#!/bin/sh\necho by a script\n' > ~/bin/script; chmod 700 ~/bin/*`)
			own()
			old := stage.Container(t, c.Agent(t, "writer"), "runtime").PID
			c.Run(t, "restart", "writer")
			if now := stage.Container(t, c.Agent(t, "writer"), "runtime").PID; now == old {
				t.Errorf("the runtime still is process %d", old)
			}
			own()
			c.Run(t, "stop", "writer")
			if a := c.Agent(t, "writer"); a.State != "stopped" {
				t.Errorf("writer is %s: %s", a.State, a.Why)
			}
			if a := c.Agent(t, "reviewer"); a.State != "running" {
				t.Errorf("reviewer is %s: %s", a.State, a.Why)
			}
			c.Run(t, "up")
			if a := c.Agent(t, "writer"); a.State != "running" {
				t.Errorf("writer is %s: %s", a.State, a.Why)
			}
			own()
		})
		c.Run(t, "down")
		stage.Leaves(t, before)
		for _, name := range []string{"runtime.img", "gateway.img"} {
			if _, err := os.Stat("/var/lib/bulkhead/teams/pair/agents/writer/" + name); err != nil {
				t.Errorf("down without --purge lost data: %v", err)
			}
		}
	})
}
