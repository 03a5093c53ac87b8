package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// Teams for measurements have small disks: their bytes are reserved when an
// agent is made, and making them is not what is measured here.
const teamDefaults = `apiVersion: bulkhead/v1
team: bench
defaults:
  engine: %s
  limits: {disk: 16Mi, inodes: 512, memory: 64Mi, cpu: 1, pids: 64}
agents:
`

// theSeven are the agents of the intended team; with channels, so that the
// adapter, the seventh, runs as well.
var theSeven = []string{"orchestrator", "pm", "engineering", "qa_validation", "research_design", "growth_gtm"}

func manifest(engine string, agents []string, channels bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, teamDefaults, engine)
	for _, name := range agents {
		fmt.Fprintf(&b, "  %s: {rootfs: /srv/rootfs, mode: service, command: [sleep, '100000']", name)
		if channels {
			b.WriteString(", channels: [all-agents]")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func newTeam(t *testing.T, bin, text string) stage.CLI {
	t.Helper()
	if _, err := os.Stat("/srv/rootfs"); errors.Is(err, fs.ErrNotExist) {
		stage.Rootfs(t, "/srv/rootfs")
	}
	c := stage.CLI{Bin: bin, Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.Dir, "bulkhead.yaml"), []byte(text), 0o644); err != nil { // #nosec G306 -- not a secret
		t.Fatal(err)
	}
	return c
}

// ups starts a stopped team again and again: accounts, rules and disks are
// there, every process is made. It gives times and the processor times of the
// whole machine.
func ups(t *testing.T, c stage.CLI, rounds int) (took, spent []time.Duration) {
	t.Helper()
	at := time.Now()
	patientUp(t, c)
	t.Logf("first up, with accounts and disks to make: %v", time.Since(at).Round(time.Millisecond))
	for range rounds {
		c.Run(t, "stop")
		time.Sleep(time.Second) // the end of the former processes is not the start of the next ones
		before, at := hostTime(t), time.Now()
		patientUp(t, c)
		took = append(took, time.Since(at))
		spent = append(spent, hostTime(t)-before)
	}
	return took, spent
}

// patientUp has no bound: a hundred agents on a busy machine take minutes.
func patientUp(t *testing.T, c stage.CLI) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "bulkhead"), "up") // #nosec G204 -- our own program
	cmd.Dir = c.Dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
}

// hostTime is the processor time that the machine has used since it booted, the
// kernel's own threads and interrupts with it (proc_stat(5), "cpu" without idle and
// iowait). What processes are charged with (proc_pid_stat(5)) misses half of a start:
// those that end between two ticks, and what the kernel does for nobody in
// particular. It is right only while nothing else is at work.
func hostTime(t *testing.T) (sum time.Duration) {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(first)[1:9] {
		if i == 3 || i == 4 { // idle, iowait
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}

func pids(t *testing.T) (out []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, e.Name())
		}
	}
	return out
}

func report(t *testing.T, what string, took, spent []time.Duration) {
	t.Helper()
	slices.Sort(took)
	slices.Sort(spent)
	p := func(d []time.Duration, q int) time.Duration {
		return d[min(len(d)*q/10, len(d)-1)].Round(time.Millisecond)
	}
	least := p(spent, 5) / time.Duration(runtime.NumCPU())
	t.Logf("%-28s p50 %v p90 %v; processor time p50 %v p90 %v, divided by %d cores %v: %.2f times that; load %s",
		what, p(took, 5), p(took, 9), p(spent, 5), p(spent, 9), runtime.NumCPU(), least, float64(p(took, 5))/float64(least), load())
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

// Six agents and the adapter, on both engines.
func TestUp(t *testing.T) {
	wanted(t)
	eachEngine(t, func(t *testing.T, bin, engine string) {
		c := newTeam(t, bin, manifest(engine, theSeven, true))
		took, spent := ups(t, c, 7)
		report(t, "six and the adapter, "+engine, took, spent)
		memory(t, len(theSeven))
		c.Run(t, "down", "--purge")
		c = newTeam(t, bin, manifest(engine, theSeven[:1], true))
		took, spent = ups(t, c, 7)
		report(t, "one and the adapter, "+engine, took, spent)
		memory(t, 1)
		c.Run(t, "down", "--purge")
	})
}

// eachEngine runs f in a throwaway host of its own for each engine.
func eachEngine(t *testing.T, f func(t *testing.T, bin, engine string)) {
	t.Helper()
	bin := stage.Build(t)
	for _, engine := range []string{"cell", "podman"} {
		t.Run(engine, func(t *testing.T) {
			if _, err := exec.LookPath(engine); err != nil && engine == "podman" {
				t.Skip("podman is not installed")
			}
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) { f(t, bin, engine) })
		})
	}
}

// The cost of an agent must not grow with their number.
func TestUpOfManyAgents(t *testing.T) {
	wanted(t)
	bin := stage.Build(t)
	for _, n := range []int{10, 100} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
				var names []string
				for i := range n {
					names = append(names, "a"+strconv.Itoa(i))
				}
				c := newTeam(t, bin, manifest("cell", names, false))
				took, spent := ups(t, c, max(1, 30/n))
				report(t, strconv.Itoa(n)+" cell agents", took, spent)
				t.Logf("each: %v, processor time %v", (took[len(took)/2] / time.Duration(n)).Round(100*time.Microsecond), (spent[len(spent)/2] / time.Duration(n)).Round(100*time.Microsecond))
				memory(t, n)
				c.Run(t, "down", "--purge")
			})
		})
	}
}

var ours = regexp.MustCompile(`bulkhead-(shim|net|serve|warden)$`)

// memory says what each kind of process of ours has (proportional set size: a
// page that several share counts for each by its part), and what that makes for
// an agent: all that is its own, and its part of what supervises everybody. What a start has left behind is
// given back by then; what has come back in a minute of idling shows as well.
func memory(t *testing.T, agents int) {
	t.Helper()
	time.Sleep(12 * time.Second) // what starts left behind is given back after 10 s
	residents(t, agents)
	time.Sleep(time.Minute)
	t.Log("a minute later:")
	residents(t, agents)
}

func residents(t *testing.T, agents int) {
	t.Helper()
	sum, count := map[string]int{}, map[string]int{}
	for _, pid := range pids(t) {
		raw, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err != nil {
			continue
		}
		argv := strings.Split(string(raw), "\x00")
		if !ours.MatchString(argv[0]) {
			continue
		}
		name := filepath.Base(argv[0])
		if len(argv) > 2 {
			name += " " + argv[1]
		}
		text, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
		if err != nil {
			t.Fatalf("memory of %s: %v", name, err)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); f[0] == "Pss:" {
				kb, err := strconv.Atoi(f[1])
				if err != nil {
					t.Fatal(err)
				}
				sum[name] += kb
				count[name]++
			}
		}
	}
	all := 0
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range sum {
			if !yield(name) {
				return
			}
		}
	}) {
		t.Logf("PSS of %-28s %3d of them, %.1f MB each", name, count[name], float64(sum[name])/float64(count[name])/1000)
		if !strings.HasSuffix(name, "adapter") {
			all += sum[name]
		}
	}
	t.Logf("PSS for each of %d agents: %.1f MB", agents, float64(all)/float64(agents)/1000)
}

// The same work, a container's start to the end of true, by `podman run` with
// about the same profile and by our cold command.
func TestColdCellAgainstPodmanRun(t *testing.T) {
	wanted(t)
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip("podman is not installed")
	}
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := newTeam(t, bin, strings.Replace(manifest("cell", theSeven[:1], false), "mode: service, command: [sleep, '100000']", "mode: session", 1))
		c.Run(t, "up")
		podman := []string{
			"run", "--rm", "--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--pids-limit=64", "--memory=64m", "--cpus=1",
			"--user=1000:1000", "--log-driver=none", "--rootfs", "/srv/rootfs", "/bin/true",
		}
		var theirs, own []time.Duration
		for range 21 {
			at := time.Now()
			if out, err := exec.Command("podman", podman...).CombinedOutput(); err != nil { // #nosec G204 -- fixed
				t.Fatalf("podman run: %v\n%s", err, out)
			}
			theirs = append(theirs, time.Since(at))
			time.Sleep(50 * time.Millisecond) // as in cellbench
			at = time.Now()
			c.Run(t, "run", "-t=false", theSeven[0], "--", "/bin/true")
			own = append(own, time.Since(at))
		}
		a, b := quantiles(t, "podman run --rm, same profile", theirs), quantiles(t, "bulkhead run, a cold cell", own)
		t.Logf("%.1f times; load %s", float64(a)/float64(b), load())
		c.Run(t, "down", "--purge")
	})
}
