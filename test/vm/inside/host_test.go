//go:build vm

// Package inside is what test/vm runs in its virtual host: Bulkhead as an
// operator installs it, on the host itself and not in namespaces of a test.
// It refuses to run anywhere else.
package inside

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/evidence"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// port exists only in a host that test/vm made.
const port = "/dev/virtio-ports/bulkhead.vm"

func TestMain(m *testing.M) {
	if _, err := os.Stat(port); err != nil {
		fmt.Fprintln(os.Stderr, "these tests change the host and run only in a virtual one: make vm")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// team is two agents with limits that a test can meet quickly.
const team = `apiVersion: bulkhead/v1
team: pair
defaults:
  limits: {memory: 64Mi, cpu: 1, pids: 48, disk: 64Mi}
agents:
  writer:
    role: writes
    rootfs: /srv/vm/rootfs
    command: [/bin/sh, -c, 'echo hello from writer; exec sleep 100000']
    mode: service
    egress: ['listed.example:8080']
    hosts: {listed.example: 203.0.113.10}
  reviewer:
    role: reads
    rootfs: /srv/vm/rootfs
    mode: session
    command: [/bin/sh]
`

// install installs Bulkhead as make install does, and makes a team and a world
// outside of the host that holds one web server.
func install(t *testing.T) stage.CLI {
	t.Helper()
	stage.Sh(t, `
install -m 755 /bulkhead/bin/* /usr/local/bin/
install -m 644 /bulkhead/deploy/bulkhead-warden.service /etc/systemd/system/
systemctl daemon-reload`)
	if _, err := os.Stat("/srv/vm/rootfs"); err != nil {
		stage.Rootfs(t, "/srv/vm/rootfs")
		stage.Sh(t, `
ip netns add world
ip link add outside type veth peer name inside netns world
ip addr add 203.0.113.1/24 dev outside
ip link set outside up
ip -n world addr add 203.0.113.10/24 dev inside
ip -n world link set inside up
ip -n world link set lo up
mkdir -p /srv/vm/www /srv/vm/team
echo "hello from outside" > /srv/vm/www/index.html
ip netns exec world busybox httpd -p 203.0.113.10:8080 -h /srv/vm/www`)
	}
	if err := os.WriteFile("/srv/vm/team/bulkhead.yaml", []byte(team), 0o600); err != nil {
		t.Fatal(err)
	}
	c := stage.CLI{Bin: "/usr/local/bin", Dir: "/srv/vm/team"}
	t.Cleanup(func() { // so that one failure is not everybody's
		if !t.Failed() {
			return
		}
		// The test's own context has ended.
		out, err := exec.Command("bash", "-c", `
bulkhead logs writer --container gateway
journalctl -u bulkhead-warden --no-pager -o cat
cat /var/lib/bulkhead/log/warden.log
bulkhead down --purge
systemctl stop bulkhead-warden`).CombinedOutput()
		t.Logf("%s\n%v", out, err)
	})
	return c
}

// whole fails the test unless both agents run with every layer in force.
func whole(t *testing.T, c stage.CLI) {
	t.Helper()
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
		if len(a.Layers) == 0 || len(a.Containers) == 0 {
			t.Errorf("%s: status shows no layer or no container: %+v", name, a)
		}
	}
}

// processes are all containers of both agents, by name and process id.
func processes(t *testing.T, c stage.CLI) string {
	t.Helper()
	var b strings.Builder
	for _, name := range []string{"writer", "reviewer"} {
		for _, k := range c.Agent(t, name).Containers {
			fmt.Fprintf(&b, "%s/%s %v %d\n", name, k.Name, k.Running, k.PID)
		}
	}
	return b.String()
}

// group is the folder of a container's cgroup, as the kernel says for its
// process.
func group(t *testing.T, pid int) string {
	t.Helper()
	return "/sys/fs/cgroup" + strings.TrimSpace(strings.TrimPrefix(stage.Sh(t, "cat /proc/"+strconv.Itoa(pid)+"/cgroup"), "0::"))
}

// egress fails the test unless the writer reaches what it may.
func egress(t *testing.T, c stage.CLI) {
	t.Helper()
	if got := c.Run(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://listed.example:8080/"); got != "hello from outside\n" {
		t.Errorf("egress: %q", got)
	}
}

func gone(c stage.CLI, t *testing.T) func() bool {
	return func() bool { return c.Try(t, "status").Exit == wire.ExitNoWarden }
}

func TestTeamOnTheHostItself(t *testing.T) {
	c := install(t)
	before := stage.Picture(t)
	c.Run(t, "up")
	whole(t, c)
	egress(t, c)
	t.Run("every container is in its own group with its limits", func(t *testing.T) {
		dir := group(t, stage.Container(t, c.Agent(t, "writer"), "runtime").PID)
		if dir != "/sys/fs/cgroup/bulkhead/pair/writer/runtime" {
			t.Errorf("the runtime is in %s", dir)
		}
		got := stage.Sh(t, "cd "+dir+"; cat memory.max memory.swap.max pids.max cpu.max")
		if got != "67108864\n0\n48\n100000 100000\n" {
			t.Errorf("limits: %q", got)
		}
	})
	t.Run("memory above 64 MiB is taken from the one who wants it", func(t *testing.T) {
		r := c.Try(t, "exec", "writer", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1")
		if r.Exit != 137 {
			t.Errorf("dd with 100 MB: %s", r)
		}
		dir := group(t, stage.Container(t, c.Agent(t, "writer"), "runtime").PID)
		if got := stage.Sh(t, "cat "+dir+"/memory.events"); strings.Contains(got, "oom_kill 0\n") {
			t.Errorf("memory.events: %s", got)
		}
		whole(t, c)
	})
	t.Run("processes above the limit cannot be made, and the other agent can go on", func(t *testing.T) {
		r := c.Try(t, "exec", "writer", "--", "sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; wait")
		if r.Exit == 0 || !strings.Contains(r.Stdout+r.Stderr, "can't fork") {
			t.Errorf("60 processes: %s", r)
		}
		if got := c.Run(t, "exec", "reviewer", "--", "echo", "here"); got != "here\n" {
			t.Errorf("the reviewer says %q", got)
		}
		c.Run(t, "restart", "writer")
		whole(t, c)
	})
	t.Run("verify attacks every wall", func(t *testing.T) {
		r := c.Try(t, "verify", "--json")
		var rep evidence.Report
		if err := json.NewDecoder(bytes.NewBufferString(r.Stdout)).Decode(&rep); err != nil {
			t.Fatalf("%v\n%s", err, r)
		}
		t.Logf("%d attacks, %d denied, %d succeeded, %d not run; %d controls, %d bit, %d not run",
			rep.Attacks, rep.Denied, rep.Succeeded, rep.NotRun, rep.Controls.Run, rep.Controls.Bit, rep.Controls.NotRun)
		if r.Exit != 0 || rep.Denied == 0 || rep.Succeeded != 0 {
			t.Errorf("exit %d\n%s", r.Exit, r.Stderr)
		}
		for _, row := range rep.Rows {
			if row.Verdict != evidence.Denied {
				t.Logf("%+v", row)
			}
		}
		for _, row := range rep.Controls.Rows {
			if !row.Bit {
				t.Logf("no control: %+v", row)
			}
		}
	})
	c.Run(t, "down", "--purge")
	stage.Leaves(t, before)
}

func TestUnderSystemd(t *testing.T) {
	c := install(t)
	before := stage.Picture(t)
	stage.Sh(t, "systemctl start bulkhead-warden")
	stage.Until(t, "the warden answers", func() bool { return !gone(c, t)() })
	c.Run(t, "up")
	whole(t, c)
	was := processes(t, c)
	const unit = "/sys/fs/cgroup/system.slice/bulkhead-warden.service"
	if dir := group(t, stage.Container(t, c.Agent(t, "writer"), "runtime").PID); dir != unit+"/bulkhead/pair/writer/runtime" {
		t.Errorf("the runtime is in %s, not in what systemd delegated", dir)
	}
	same := func(t *testing.T) {
		t.Helper()
		stage.Until(t, "the warden answers", func() bool { return !gone(c, t)() })
		stage.Until(t, "every agent runs", func() bool {
			return c.Agent(t, "writer").State == "running" && c.Agent(t, "reviewer").State == "running"
		})
		whole(t, c)
		if now := processes(t, c); now != was {
			t.Errorf("processes were\n%sand now are\n%s", was, now)
		}
		egress(t, c)
	}
	t.Run("agents survive systemctl restart", func(t *testing.T) {
		old := stage.Sh(t, "systemctl show -P MainPID bulkhead-warden")
		stage.Sh(t, "systemctl restart bulkhead-warden")
		if now := stage.Sh(t, "systemctl show -P MainPID bulkhead-warden"); now == old {
			t.Errorf("the warden still is process %s", now)
		}
		same(t)
	})
	t.Run("agents survive kill -9 of the warden, which systemd starts again", func(t *testing.T) {
		old := stage.Sh(t, "systemctl show -P MainPID bulkhead-warden")
		stage.Sh(t, "systemctl kill -s KILL --kill-whom=main bulkhead-warden")
		stage.Until(t, "systemd has started another", func() bool {
			now := stage.Sh(t, "systemctl show -P MainPID bulkhead-warden")
			return now != old && strings.TrimSpace(now) != "0"
		})
		same(t)
	})
	t.Run("after systemctl stop, up by hand finds the same agents", func(t *testing.T) {
		stage.Sh(t, "systemctl stop bulkhead-warden")
		stage.Ended(t)
		c.Run(t, "up")
		same(t)
	})
	c.Run(t, "down", "--purge")
	stage.Leaves(t, before)
}

func TestDebian12LacksLandlockABI6(t *testing.T) {
	c := install(t)
	before := stage.Picture(t)
	r := c.Try(t, "up")
	if r.Exit != wire.ExitMissing || !strings.Contains(r.Stderr, "Landlock") || !strings.Contains(r.Stderr, "--accept-missing pod") {
		t.Errorf("up on a kernel without Landlock ABI 6: %s", r)
	}
	stage.Leaves(t, before)
	c.Run(t, "up", "--accept-missing", "pod")
	a := c.Agent(t, "writer")
	if a.State != "running" {
		t.Errorf("writer is %s: %s", a.State, a.Why)
	}
	shown := false
	for _, l := range a.Layers {
		shown = shown || l.Layer == "pod" && !l.InForce && strings.Contains(l.Witness, "Landlock")
	}
	if !shown {
		t.Errorf("status does not show what was accepted: %+v", a.Layers)
	}
	verified := c.Try(t, "verify", "--no-controls", "--json")
	var rep evidence.Report
	if err := json.NewDecoder(bytes.NewBufferString(verified.Stdout)).Decode(&rep); err != nil {
		t.Fatalf("%v\n%s", err, verified)
	}
	t.Logf("verify: exit %d, %d attacks, %d denied, %d succeeded, %d not run", verified.Exit, rep.Attacks, rep.Denied, rep.Succeeded, rep.NotRun)
	// What Landlock would refuse, other mechanisms of the pod may still: an attack
	// is denied by those, or succeeds and is not_run, for the operator accepted it.
	if verified.Exit != wire.ExitOK || rep.Succeeded != 0 || rep.Denied == 0 || rep.Denied+rep.NotRun != rep.Attacks {
		t.Errorf("%s", verified)
	}
	if got := c.Run(t, "exec", "writer", "--", "id", "-u"); got != "1000\n" {
		t.Errorf("id -u says %q", got)
	}
	egress(t, c)
	c.Run(t, "down", "--purge")
	stage.Leaves(t, before)
}
