package system

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// greedy is a team of two that may do the same: writer is taken over, reviewer
// works beside it.
const greedy = `apiVersion: bulkhead/v1
team: pair
defaults:
  limits: {memory: 128Mi, cpu: 1, pids: 48, disk: 32Mi, inodes: 2000, logs: 3Mi, connections: 40}
  egress: ['listed.example:8080', 'listed.example:8081']
agents:
  writer: {rootfs: /srv/rootfs, mode: session, hosts: {listed.example: 203.0.113.10}}
  reviewer: {rootfs: /srv/rootfs, mode: session, hosts: {listed.example: 203.0.113.10}}
`

// work is what reviewer does while its neighbour takes everything: it writes,
// makes files, starts processes and talks to the world, and says so.
const work = `set -e
cd /workspace; rm -rf w; mkdir w
dd if=/dev/urandom of=w/a bs=1M count=2 conv=fsync 2>/dev/null
cp w/a w/b; cmp w/a w/b
for i in $(seq 100); do echo $i > w/$i; done
[ "$(ls w | wc -l)" = 102 ]
for i in 1 2 3; do wget -q -O - http://listed.example:8080/; done`

const worked = "hello from outside\nhello from outside\nhello from outside\n"

func works(t *testing.T, c stage.CLI, beside string) {
	t.Helper()
	start := time.Now()
	if r := c.Try(t, "exec", "reviewer", "--", "sh", "-c", work); r.Exit != 0 || r.Stdout != worked {
		t.Errorf("beside %s, the neighbour's work: %s", beside, r)
	}
	t.Logf("beside %-12s the neighbour's work took %s", beside, time.Since(start).Round(time.Millisecond))
}

func TestAnAgentThatTakesEverythingTakesNothingFromItsNeighbour(t *testing.T) {
	eachHostile(t, func(kind engine.Kind) string {
		return strings.Replace(greedy, "defaults:\n", "defaults:\n  engine: "+string(kind)+"\n", 1)
	}, func(t *testing.T, c stage.CLI) {
		endless(t, "203.0.113.10:8081")
		c.Run(t, "up")
		running(t, c)
		works(t, c, "nothing")
		for _, x := range []struct {
			name, clear string
			args        []string
			until       string // in the log of the attack; empty: a moment is enough
		}{
			{"a full disk", "rm /workspace/big", []string{"fill", "/workspace/big"}, "full"},
			{"no inodes", "rm -r /home/agent/i", []string{"inodes", "/home/agent/i"}, "no space left"},
			{"connections", "", []string{"connections", "listed.example:8081"}, "took 40 then 429"},
			{"processes", "", []string{"pids"}, "temporarily unavailable"},
			{"processor", "", []string{"spin"}, ""},
			{"output", "", []string{"print"}, ""},
			{"memory", "", []string{"memory"}, "took 64"},
		} {
			end, said := attack(t, c, x.args...)
			if x.until == "" {
				time.Sleep(time.Second)
			} else {
				defer func() { // a closure of its own: what the attack said when the test failed
					if t.Failed() {
						t.Logf("%s said %.2000s", x.name, said())
					}
				}()
				stage.Until(t, x.name+" is taken", func() bool { return strings.Contains(said(), x.until) })
			}
			works(t, c, x.name)
			end()
			if x.clear != "" {
				c.Run(t, "exec", "writer", "--", "sh", "-c", x.clear)
			}
			if a := c.Agent(t, "reviewer"); a.State != "running" || a.Restarts != 0 {
				t.Errorf("beside %s the neighbour is %s after %d restarts: %s", x.name, a.State, a.Restarts, a.Why)
			}
		}
		c.Run(t, "down", "--purge")
	})
}

// endless serves HTTP answers that never come to their end.
func endless(t *testing.T, address string) {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
}

func command(c stage.CLI, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.Bin, "bulkhead"), args...)
	cmd.Dir = c.Dir
	return cmd
}

// attack starts the hostile program in writer, with what it prints in a file.
func attack(t *testing.T, c stage.CLI, args ...string) (end func(), said func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "said")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(c, append([]string{"exec", "writer", "--", "hostile"}, args...)...)
	cmd.Stdout, cmd.Stderr = f, f
	if args[0] == "print" {
		cmd.Stdout = nil
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	end = func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}
	t.Cleanup(end)
	return end, func() string {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
}

func TestAnAgentOnAFullDiskIsRestartedStoppedAndPurged(t *testing.T) {
	bin := buildHostile(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := hostileHost(t, bin)
		write(t, c.Dir, greedy)
		c.Run(t, "up")
		c.Run(t, "exec", "writer", "--", "touch", "/workspace/big") // later there is no inode left for it
		c.Run(t, "exec", "writer", "--", "hostile", "inodes", "/home/agent/i")
		c.Run(t, "exec", "writer", "--", "hostile", "fill", "/workspace/big")
		a := c.Agent(t, "writer")
		if len(a.Disks) != 2 || a.Disks[0].UsedBytes < a.Disks[0].Bytes-1<<20 || a.Disks[0].UsedInodes != a.Disks[0].Inodes {
			t.Errorf("status says %+v", a.Disks)
		}
		if a.Disks[1].UsedBytes > a.Disks[1].Bytes/2 {
			t.Errorf("a full workspace takes the gateway's disk: %+v", a.Disks[1])
		}
		kill9(t, wardens(t)...) // its successor takes the disks over
		for _, args := range [][]string{{"up"}, {"restart", "writer"}, {"stop", "writer"}, {"up"}, {"down"}, {"up"}} {
			c.Run(t, args...)
			if args[0] != "down" && args[0] != "stop" {
				running(t, c)
			}
		}
		if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "ls /workspace; ls /home/agent"); got != "big\ni\n" {
			t.Errorf("after down and up there is %q", got)
		}
		c.Run(t, "down", "--purge")
		if left := stage.Sh(t, "ls /var/lib/bulkhead/teams 2>/dev/null || true; grep /var/lib/bulkhead/ /proc/self/mountinfo || true"); left != "" {
			t.Errorf("purge left %s", left)
		}
	})
}

func TestLimitsOfADiskAreChangedByUp(t *testing.T) {
	bin := buildHostile(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := hostileHost(t, bin)
		with := func(limits string) { write(t, c.Dir, strings.Replace(greedy, "disk: 32Mi, inodes: 2000", limits, 1)) }
		write(t, c.Dir, greedy)
		c.Run(t, "up")
		c.Run(t, "exec", "writer", "--", "dd", "if=/dev/zero", "of=/workspace/data", "bs=1M", "count=20")
		holds := func(megabytes, inodes int64) {
			t.Helper()
			running(t, c)
			d := c.Agent(t, "writer").Disks[0]
			if d.Bytes > megabytes<<20 || d.Bytes < megabytes<<20*7/10 || d.Inodes < inodes || d.Inodes > inodes+64 {
				t.Errorf("of %d MiB and %d inodes the kernel has %+v", megabytes, inodes, d)
			}
			if got := c.Run(t, "exec", "writer", "--", "sh", "-c", "stat -c '%u %s' /workspace/data; touch /workspace/x /home/agent/x"); got != "1000 20971520\n" {
				t.Errorf("the data is now %q", got)
			}
		}
		holds(32, 2000)
		with("disk: 64Mi, inodes: 5000")
		c.Run(t, "up")
		holds(64, 5000)
		with("disk: 40Mi, inodes: 300")
		c.Run(t, "up")
		holds(40, 300)
		with("disk: 16Mi, inodes: 300")
		if r := c.Try(t, "up"); r.Exit != 2 || !strings.Contains(r.Stderr, "do not fit on one of 16 MiB") {
			t.Errorf("20 MiB on a disk of 16: %s", r)
		}
		holds(40, 300)
		with("disk: 10Ti, inodes: 300")
		if r := c.Try(t, "up"); r.Exit != 2 || !strings.Contains(r.Stderr, "write a smaller limits.disk") {
			t.Errorf("more than the host has: %s", r)
		}
		holds(40, 300)
		c.Run(t, "down", "--purge")
	})
}

// Without loop devices agents run only when the operator says so, status goes on
// saying what is missing, and a later up takes what was written over.
func TestAHostWithoutDisksOfAFixedSizeIsRefusedUnlessAccepted(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		write(t, c.Dir, greedy)
		stage.Sh(t, "mv /dev/loop-control /dev/hidden")
		if r := c.Try(t, "up"); r.Exit != 5 || !strings.Contains(r.Stderr, "--accept-missing quota") {
			t.Errorf("%s", r)
		}
		c.Run(t, "up", "--accept-missing", "quota")
		c.Run(t, "exec", "writer", "--", "sh", "-c", "echo kept > /workspace/f")
		for _, l := range c.Agent(t, "writer").Layers {
			if l.Layer == "quota" && (l.InForce || !strings.Contains(l.Witness, "loop devices")) {
				t.Errorf("the layer is said to be %+v", l)
			}
		}
		stage.Sh(t, "mv /dev/hidden /dev/loop-control")
		c.Run(t, "down")
		c.Run(t, "up")
		running(t, c)
		if got := c.Run(t, "exec", "writer", "--", "cat", "/workspace/f"); got != "kept\n" {
			t.Errorf("what was written before is %q", got)
		}
		if a := c.Agent(t, "writer"); len(a.Disks) != 2 {
			t.Errorf("disks %+v", a.Disks)
		}
		c.Run(t, "down", "--purge")
	})
}

// An agent that prints without end keeps its log within the manifest's bound.
func TestWhatAnAgentPrintsIsBounded(t *testing.T) {
	bin := buildHostile(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := hostileHost(t, bin)
		write(t, c.Dir, strings.Replace(greedy, "writer: {rootfs: /srv/rootfs, mode: session,", "writer: {rootfs: /srv/rootfs, command: [hostile, print],", 1))
		c.Run(t, "up")
		size := func() (n int64) {
			files, err := filepath.Glob("/var/lib/bulkhead/teams/pair/agents/writer/log/runtime.log*")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if st, err := os.Stat(f); err == nil {
					n += st.Size()
				}
			}
			return n
		}
		stage.Until(t, "the log was rotated twice", func() bool { return size() > 2<<20 })
		time.Sleep(time.Second)
		if n := size(); n > 3<<20 {
			t.Errorf("its log has %d bytes, limits.logs says %d", n, 3<<20)
		}
		works(t, c, "output")
		if out := c.Run(t, "logs", "writer", "--tail", "1"); !strings.Contains(out, "xxx") {
			t.Errorf("its log says %.100q", out)
		}
		c.Run(t, "down", "--purge")
	})
}
