package system

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// runscHost is a throwaway host with gVisor, whose writer's runtime runs under
// it. The machine itself needs none: it is built from the module proxy once.
func runscHost(t *testing.T, f func(t *testing.T, c stage.CLI)) {
	t.Helper()
	needPodman(t)
	bin, tool := stage.Build(t), stage.Tool(t, "runsc")
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		// Where the account cell shows it; a bind mount costs no memory.
		stage.Sh(t, "touch /usr/local/bin/runsc; chmod 755 /usr/local/bin/runsc; mount --bind "+tool+" /usr/local/bin/runsc")
		c := host(t, bin)
		// The sandbox's own kernel takes memory and threads of the agent's.
		manifest := strings.Replace(mixed("    ociRuntime: runsc\n    terminal: true\n    ports: [8081]\n"), "memory: 256Mi, cpu: 1, pids: 64", "memory: 512Mi, cpu: 2, pids: 256", 1)
		write(t, c.Dir, manifest)
		f(t, c)
	})
}

func TestRuntimeUnderGVisorWorksAndLeavesNothing(t *testing.T) {
	runscHost(t, func(t *testing.T, c stage.CLI) {
		before := stage.Picture(t)
		c.Run(t, "up")
		running(t, c)
		a := c.Agent(t, "writer")
		for _, l := range a.Layers {
			if !l.InForce || l.Layer == "pod" && !strings.Contains(l.Witness, "gVisor") {
				t.Errorf("layer %s: %v, %s", l.Layer, l.InForce, l.Witness)
			}
		}
		t.Run("the guest has a kernel of its own, and the host sees the sandbox", func(t *testing.T) {
			// The machine's kernel is newer by years than what gVisor says it is.
			if got := c.Run(t, "exec", "writer", "--", "uname", "-r"); got == stage.Sh(t, "uname -r") {
				t.Errorf("the guest runs on the host's own kernel, %s", got)
			}
			if got := c.Run(t, "exec", "writer", "--", "cat", "/proc/mounts"); !strings.Contains(got, "directfs") {
				t.Errorf("its files do not come from a gofer:\n%s", got)
			}
			pid := stage.Container(t, a, "runtime").PID
			if got := stage.Sh(t, fmt.Sprintf("tr '\\0' ' ' < /proc/%d/cmdline", pid)); !strings.HasPrefix(got, "runsc-sandbox") {
				t.Errorf("process %d is %s", pid, got)
			}
			if status(t, pid, "NoNewPrivs") != "1" || status(t, pid, "Seccomp") != "2" {
				t.Errorf("the sandbox is not confined")
			}
			if ppid := status(t, pid, "PPid"); ppid != strconv.Itoa(launcherOf(t, a)) {
				t.Errorf("its parent is %s", ppid)
			}
			if out := stage.Sh(t, "pidof podman conmon || true"); out != "" {
				t.Errorf("left beside the container: %s", out)
			}
		})
		t.Run("exec", func(t *testing.T) {
			if got := c.Run(t, "exec", "writer", "--", "id", "-u"); got != "1000\n" {
				t.Errorf("id -u says %q", got)
			}
			r := c.Try(t, "exec", "writer", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
			if r.Exit != 7 || r.Stdout != "out\n" || r.Stderr != "err\n" {
				t.Errorf("%s", r)
			}
			if r := c.Try(t, "exec", "writer", "--", "/no/such"); r.Exit != 127 {
				t.Errorf("%s", r)
			}
			if got := stage.Sh(t, "cd "+c.Dir+"; head -c 3000000 /dev/zero | "+c.Bin+"/bulkhead exec writer -- wc -c"); strings.TrimSpace(got) != "3000000" {
				t.Errorf("of 3000000 bytes of input came %q", got)
			}
			if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "head -c 3000000 /dev/zero"); len(got) != 3000000 {
				t.Errorf("of 3000000 bytes of output came %d", len(got))
			}
			if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "echo again > /dev/stdout"); got != "again\n" {
				t.Errorf("the process cannot open its own output: %q", got)
			}
		})
		t.Run("a terminal", func(t *testing.T) {
			got := stage.Sh(t, "cd "+c.Dir+"; PATH="+c.Bin+":$PATH; "+
				`script -qec "stty rows 31 cols 91; bulkhead exec writer -- sh -c 'stty size; tty; exit 5'" /dev/null </dev/null || echo "exit $?"`)
			if !strings.Contains(got, "31 91") || !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "exit 5") {
				t.Errorf("%q", got)
			}
		})
		t.Run("the command's terminal", func(t *testing.T) {
			// The terminal shows what is typed, also while nobody reads it.
			got := stage.Sh(t, "cd "+c.Dir+"; PATH=$PATH:"+c.Bin+shellOfAttach+`join a writer; type a typed; seen a typed; leave a`)
			if !strings.Contains(got, "typed") || !strings.Contains(got, "goes on") || !strings.Contains(got, "exit 0") {
				t.Errorf("%q", got)
			}
		})
		t.Run("files", func(t *testing.T) {
			got := c.Run(t, "exec", "writer", "--", "sh", "-c", "for d in /tmp /workspace /home/agent; do echo x > $d/f && stat -c %u $d/f; done; (echo x > /f) 2>&1; (echo x > /etc/f) 2>&1; true")
			if strings.Count(got, "1000\n") != 3 || strings.Count(got, "f: ") != 2 {
				t.Errorf("%s", got)
			}
			r := c.Try(t, "exec", "writer", "--", "sh", "-c", "cp /bin/busybox /tmp/busybox && /tmp/busybox true")
			if r.Exit == 0 || !strings.Contains(r.Stderr, "ermission denied") {
				t.Errorf("/tmp is not noexec: %s", r)
			}
		})
		gvisorEgress(t, c)
		t.Run("limits bind the sandbox", func(t *testing.T) {
			// tail keeps what it reads; 700 MB are more than the agent's 512 MiB.
			r := c.Try(t, "exec", "writer", "--", "sh", "-c", "dd if=/dev/zero bs=1M count=800 2>/dev/null | tail -c 700000000 | wc -c")
			if r.Exit == 0 && strings.TrimSpace(r.Stdout) == "700000000" {
				t.Errorf("memory: %s", r)
			}
			// The sandbox ends and is made anew; a loaded machine takes its time for both.
			for end := time.Now().Add(4 * time.Minute); c.Try(t, "exec", "writer", "--", "true").Exit != 0; time.Sleep(time.Second) {
				if time.Now().After(end) {
					t.Fatal("the writer does not run again")
				}
			}
			got := c.Run(t, "exec", "writer", "--", "cat", "/proc/self/limits")
			if !strings.Contains(got, "Max open files            1024                 1024") || !strings.Contains(got, "Max core file size        0                    0") {
				t.Errorf("%s", got)
			}
		})
		t.Run("forward", func(t *testing.T) { gvisorForward(t, c) })
		t.Run("restart, and a gateway that ends", func(t *testing.T) {
			old := stage.Container(t, c.Agent(t, "writer"), "runtime").PID
			c.Run(t, "restart", "writer")
			if now := stage.Container(t, c.Agent(t, "writer"), "runtime").PID; now == old {
				t.Errorf("the runtime still is process %d", old)
			}
			kill9(t, stage.Container(t, c.Agent(t, "writer"), "gateway").PID)
			stage.Until(t, "the listed name is reached by the next gateway", func() bool {
				return c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://listed.example:8080/").Stdout == "hello from outside\n"
			})
			kill9(t, stage.Container(t, c.Agent(t, "writer"), "runtime").PID)
			stage.Until(t, "the writer runs again", func() bool { return c.Try(t, "exec", "writer", "--", "true").Exit == 0 })
		})
		c.Run(t, "down")
		stage.Leaves(t, before)
	})
}

func gvisorEgress(t *testing.T, c stage.CLI) {
	t.Helper()
	t.Run("listed names are reached, directly and by the proxy", func(t *testing.T) {
		for _, cmd := range []string{
			"env -u http_proxy -u HTTP_PROXY wget -q -O - http://listed.example:8080/",
			"wget -q -O - http://listed.example:8080/",
		} {
			if got := c.Run(t, "exec", "writer", "--", "sh", "-c", cmd); got != "hello from outside\n" {
				t.Errorf("%s: %q", cmd, got)
			}
		}
	})
	t.Run("nothing else is", func(t *testing.T) {
		if r := c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://unlisted.example:8080/"); r.Exit == 0 {
			t.Errorf("%s", r)
		}
		stage.Until(t, "the denial is in the gateway's log", func() bool {
			log := c.Run(t, "logs", "writer", "--container", "gateway")
			return strings.Contains(log, "egress.not_listed") && strings.Contains(log, `unlisted.example:8080`)
		})
		for _, cmd := range []string{"nc -w 2 203.0.113.11 8080", "nc -w 2 203.0.113.10 8080"} {
			if r := c.Try(t, "exec", "writer", "--", "sh", "-c", "echo | "+cmd); r.Exit == 0 {
				t.Errorf("%s: %s", cmd, r)
			}
		}
	})
}

// gvisorForward speaks to a server inside through the warden.
func gvisorForward(t *testing.T, c stage.CLI) {
	t.Helper()
	c.Run(t, "exec", "writer", "--", "sh", "-c", "mkdir -p /tmp/www; echo from inside > /tmp/www/index.html; busybox httpd -p 127.0.0.1:8081 -h /tmp/www")
	stage.Sh(t, "cd "+c.Dir+"; "+c.Bin+"/bulkhead forward writer 8081 >/srv/forward 2>&1 & echo $! >/srv/pid; disown")
	defer func() { stage.Sh(t, "kill $(cat /srv/pid)") }()
	stage.Until(t, "it listens", func() bool {
		out, err := os.ReadFile("/srv/forward")
		return err == nil && strings.Contains(string(out), "of writer")
	})
	if got := stage.Sh(t, "busybox wget -q -O - http://$(awk '{print $1; exit}' /srv/forward)/"); got != "from inside\n" {
		t.Errorf("%q", got)
	}
}

func TestRuntimeUnderGVisorHoldsEveryAttack(t *testing.T) {
	runscHost(t, func(t *testing.T, c stage.CLI) {
		c.Run(t, "up")
		r, report := verify(t, c)
		if r.Exit != 0 || !report.OK() {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		running(t, c)
		c.Run(t, "down")
	})
}
