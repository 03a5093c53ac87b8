// Package stage sets a throwaway host up for system tests: the built programs,
// a small root file system, a manifest, and a picture of the host that can be
// compared before and after.
package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/wire"
	"bulkhead/test/system/throwaway"
)

// Build builds the programs into bin/ of the repository and returns that
// folder. Inside a throwaway host it only returns it: the outer run of the
// same test built them. Call it before throwaway.Run.
func Build(t *testing.T) string {
	t.Helper()
	root := repository(t)
	bin := filepath.Join(root, "bin")
	if throwaway.Inside() {
		return bin
	}
	if err := buildOnce(); err != nil {
		t.Fatal(err)
	}
	return bin
}

// buildOnce builds once for all tests of a package: a program that is written
// anew while another test's host runs it would be two versions in one test.
var buildOnce = sync.OnceValue(func() error {
	root, err := findRepository()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(root, "bin")+"/", "./cmd/...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
})

// BuildAs is the folder of another build of the programs, which say so and have
// another digest. Call it before throwaway.Run.
func BuildAs(t *testing.T, id string) string {
	t.Helper()
	root := repository(t)
	dir := filepath.Join(root, "bin", "builds", id)
	if throwaway.Inside() {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-buildid="+id+" -X main.build="+id, "-o", dir+"/", "./cmd/...")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// Tool gives the path of a tool of .ci/tools, which is built when the cache
// lacks it. Inside a throwaway host it only returns the path. Call it before
// throwaway.Run.
func Tool(t *testing.T, name string) string {
	t.Helper()
	if throwaway.Inside() {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		path, err := filepath.EvalSymlinks(filepath.Join(cache, "bulkhead", "tools", "bin", name))
		if err != nil {
			t.Fatalf("%s is not where .ci/get-tools puts it: %v", name, err)
		}
		return path
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(repository(t), ".ci", "get-tools"), name)
	cmd.Stderr = os.Stderr
	dir, err := cmd.Output()
	if err != nil {
		t.Fatalf(".ci/get-tools %s: %v", name, err)
	}
	return filepath.Join(strings.TrimSpace(string(dir)), name)
}

func repository(t *testing.T) string {
	t.Helper()
	dir, err := findRepository()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func findRepository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no go.mod above the test's folder")
}

// Rootfs makes a root file system from busybox at path, which must not exist.
func Rootfs(t *testing.T, path string) {
	t.Helper()
	Sh(t, `
r=`+path+`; mkdir -p $r/bin $r/etc $r/proc $r/sys $r/dev $r/tmp $r/run $r/workspace $r/home/agent $r/.bulkhead $r/srv
cp "$(command -v busybox)" $r/bin/busybox
for a in $($r/bin/busybox --list); do [ $a = busybox ] || ln -s busybox $r/bin/$a; done
touch $r/etc/hosts $r/etc/resolv.conf $r/etc/passwd $r/etc/group`)
}

// Sh runs a shell script and returns what it printed; the test fails when the
// script does.
func Sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// patience stretches a bound by the factor in BULKHEAD_TEST_PATIENCE, which
// test/vm sets: an emulated processor is many times slower.
func patience(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("BULKHEAD_TEST_PATIENCE")); err == nil && n > 0 {
		return d * time.Duration(n)
	}
	return d
}

// CLI runs the operator's command.
type CLI struct {
	Bin string // folder of the programs
	Dir string // where it is run; holds bulkhead.yaml
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Exit           int
}

func (r Result) String() string {
	return fmt.Sprintf("exit %d\n--- stdout\n%s--- stderr\n%s", r.Exit, r.Stdout, r.Stderr)
}

// Try runs bulkhead with args and returns how it ended.
func (c CLI) Try(t *testing.T, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience(2*time.Minute))
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "bulkhead"), args...)
	cmd.Dir = c.Dir
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("bulkhead %v: %v", args, err)
	}
	return Result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// Run is Try for a command that must succeed; it returns its standard output.
func (c CLI) Run(t *testing.T, args ...string) string {
	t.Helper()
	r := c.Try(t, args...)
	if r.Exit != 0 {
		t.Fatalf("bulkhead %s: %s\nthe warden's log:\n%s", strings.Join(args, " "), r, wardenLog())
	}
	return r.Stdout
}

func wardenLog() string {
	raw, err := os.ReadFile("/var/lib/bulkhead/log/warden.log")
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Status asks for the status of every team.
func (c CLI) Status(t *testing.T) wire.StatusResult {
	t.Helper()
	var st wire.StatusResult
	out := c.Run(t, "status", "--json")
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		t.Fatalf("status: %v\n%s", err, out)
	}
	return st
}

// Agent finds one agent in the status.
func (c CLI) Agent(t *testing.T, name string) wire.AgentStatus {
	t.Helper()
	st := c.Status(t)
	for _, tm := range st.Teams {
		for _, a := range tm.Agents {
			if a.Agent == name {
				return a
			}
		}
	}
	t.Fatalf("status has no agent %s: %+v", name, st)
	return wire.AgentStatus{}
}

// Container finds one container of an agent.
func Container(t *testing.T, a wire.AgentStatus, name string) wire.ContainerStatus {
	t.Helper()
	for _, c := range a.Containers {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("agent %s has no container %s: %+v", a.Agent, name, a)
	return wire.ContainerStatus{}
}

// Until asks again and again until ok says yes; the test fails after
// twenty seconds. It bounds a wait, it does not measure.
func Until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience(20 * time.Second)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("still not after 20 s: %s\nthe warden's log:\n%s", what, wardenLog())
}

// numbers are what differs between two equal pictures: counters and handles.
var numbers = regexp.MustCompile(`packets \d+ bytes \d+`)

// Picture is everything of a host that Bulkhead may make: accounts, ranges,
// rules, mounts, cgroups, network namespaces, links, processes, run files.
func Picture(t *testing.T) map[string]string {
	t.Helper()
	p := map[string]string{}
	for name, script := range map[string]string{
		"accounts":   "cat /etc/passwd /etc/group /etc/subuid /etc/subgid",
		"rules":      "nft list ruleset",
		"mounts":     "cut -d' ' -f4- /proc/self/mountinfo | sort",
		"cgroups":    "find /sys/fs/cgroup -mindepth 2 -type d | sort",
		"namespaces": "ls /run/netns 2>/dev/null || true; ip -o link",
		"processes":  `all=$(ps -eo uid,args --no-headers); grep -v -e 'ps -eo' -e 'bash -euo' -e ' 0 sort$' -e '\[kworker/' -e '(udev-worker)' -e '<defunct>' <<< "$all" | sort`,
		"run":        "find /run -name '*bulkhead*' | sort",
		"sysctls":    "sysctl -a 2>/dev/null | grep -E '^(kernel|net|user|vm)[.]' | grep -v -e random -e ns_last_pid -e pty.nr -e conntrack_count -e sched_domain || true",
	} {
		p[name] = numbers.ReplaceAllString(Sh(t, script), "packets # bytes #")
	}
	return p
}

// Differ lists what is in one picture and not in the other, line by line.
func Differ(before, after map[string]string) []string {
	var out []string
	for name := range before {
		was, is := lines(before[name]), lines(after[name])
		for l := range is {
			if is[l] > was[l] {
				out = append(out, name+": + "+l)
			}
		}
		for l := range was {
			if was[l] > is[l] {
				out = append(out, name+": - "+l)
			}
		}
	}
	sort.Strings(out)
	return out
}

// Ended waits until no warden is left. One that no longer answers may still be
// about to end.
func Ended(t *testing.T) {
	t.Helper()
	Until(t, "the warden has ended", func() bool { return Sh(t, "pidof bulkhead-warden || true") == "" })
}

// Leaves waits for the warden's end and reports what differs from the picture.
func Leaves(t *testing.T, before map[string]string) {
	t.Helper()
	Ended(t)
	for _, d := range Differ(before, Picture(t)) {
		t.Error(d)
	}
}

func lines(s string) map[string]int {
	m := map[string]int{}
	for l := range strings.Lines(s) {
		m[strings.TrimSpace(l)]++
	}
	return m
}
