package throwaway_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bulkhead/test/system/throwaway"
)

// sh runs a shell script and gives its output; the test fails when it fails.
func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bash", "-euc", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// mess makes one of everything that a host is for.
const mess = `
useradd -M bh-throwaway-test; getent passwd bh-throwaway-test
mkdir /srv/bh-throwaway-test; mount -t tmpfs none /srv/bh-throwaway-test; echo x > /srv/bh-throwaway-test/x
echo x > /etc/bh-throwaway-test; rm /etc/debian_version
nft add table inet bh_throwaway_test; nft list tables
for d in /sys/fs/cgroup /sys/fs/cgroup/*/; do [ ! -e $d/cgroup.procs ] || { mkdir $d/bulkhead; [ $d != /sys/fs/cgroup/pids/ ] || { echo 7 > $d/bulkhead/pids.max; }; }; done
hostname bh-throwaway-test
echo state > /var/lib/bulkhead/bh-throwaway-test; echo run > /run/bh-throwaway-test; echo tmp > /tmp/bh-throwaway-test
setsid sleep 1000 > /dev/null 2>&1 < /dev/null &
`

func TestTwoHostsSideBySideSeeNothingOfEachOther(t *testing.T) {
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			throwaway.Run(t, func(t *testing.T, h *throwaway.Host) {
				sh(t, mess) // fails when the other's table, account or folder is there
				if got := sh(t, "nft list tables"); got != "table inet bh_throwaway_test\n" {
					t.Errorf("tables are %q, want only this host's own", got)
				}
				sh(t, "ip address show dev lo | grep -q "+h.Listed.String())
				sh(t, "ip address show dev lo | grep -q "+h.Unlisted.String())
				// A user namespace of an ordinary id can mount proc: nothing covers it.
				sh(t, "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --map-root-user --mount --pid --fork --mount-proc true")
				if procs := sh(t, "ls -d /proc/[0-9]* | wc -l"); strings.TrimSpace(procs) == "" || len(procs) > 3 {
					t.Errorf("%s processes are visible, want a handful", procs)
				}
				throwaway.RequireInside(t)
			})
		})
	}
}

// snapshot is what a host could change on the machine, read from the kernel.
func snapshot(t *testing.T) map[string]string {
	t.Helper()
	s := map[string]string{
		"mounts": sh(t, "cat /proc/self/mountinfo"),
		"rules":  sh(t, "nft list ruleset"),
		"users":  sh(t, "cat /etc/passwd /etc/group /etc/subuid /etc/subgid"),
		"etc":    sh(t, "ls -la --time-style=full-iso /etc | grep -v ' \\.\\.$'"),
		"links":  sh(t, "ip -o link; ip -o address | sed 's/valid_lft.*//'"),
		"name":   sh(t, "uname -n"),
		"places": sh(t, "ls -d /var/lib/bulkhead /srv/* /run/bh-* /tmp/bh-* 2>&1 || true"),
		"netns":  sh(t, "ls /run/netns 2>&1 || true"),
	}
	// Other hosts come and go beside this test; our own is looked for by its id.
	s["cgroups"] = sh(t, "find /sys/fs/cgroup -name 'bulkhead-test-*' -prune -o -type d -print 2>/dev/null | sort")
	return s
}

func TestNothingOfTheMachineChanges(t *testing.T) {
	needRoot(t)
	before := snapshot(t)
	var out bytes.Buffer
	marker, err := os.Create(filepath.Join(t.TempDir(), "marker"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = marker.Close() }()
	err = throwaway.Command{
		Argv:   []string{"bash", "-euc", mess + "\ncat /run/bulkhead-throwaway.json >&3"},
		Stdout: &out, Stderr: &out, ExtraFiles: []*os.File{marker},
	}.Run(t.Context())
	if err != nil {
		t.Fatalf("host: %v\n%s", err, out.String())
	}
	if diff := cmp.Diff(before, snapshot(t)); diff != "" {
		t.Errorf("the machine changed (-before +after):\n%s", diff)
	}
	text, err := os.ReadFile(marker.Name())
	if err != nil {
		t.Fatal(err)
	}
	var m struct{ ID string }
	if err := json.Unmarshal(text, &m); err != nil || m.ID == "" {
		t.Fatalf("marker %q: %v\n%s", text, err, out.String())
	}
	id := m.ID
	if left := sh(t, "find /sys/fs/cgroup /var/tmp -maxdepth 3 -name "+id); left != "" {
		t.Errorf("left on the machine:\n%s", left)
	}
	if ps := sh(t, "grep -lsa "+id+" /proc/[0-9]*/environ || true"); ps != "" {
		t.Errorf("processes left: %s", ps)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: run it with sudo (sudo make test)")
	}
}

// fixtureVar chooses what TestFixture does when another test runs it.
const fixtureVar = "BULKHEAD_THROWAWAY_FIXTURE"

// TestFixture is run by the tests below in a process of its own, to see what
// becomes of its verdict.
func TestFixture(t *testing.T) {
	want := os.Getenv(fixtureVar)
	if want == "" {
		return // passes: it is only a fixture
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		switch want {
		case "pass":
			t.Log("inner says hello")
		case "fail":
			t.Error("inner says no")
		case "skip":
			t.Skip("inner says not here")
		case "exit":
			os.Exit(0) // a verdict that never comes must not count as a pass
		case "panic":
			panic("inner panics")
		case "sleep":
			t.Log("sleeping")
			time.Sleep(time.Hour)
		}
	})
}

func fixture(t *testing.T, want string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestFixture$", "-test.v=true") // #nosec G204 -- this test itself
	cmd.Env = append(os.Environ(), fixtureVar+"="+want)
	return cmd
}

func TestVerdictOfTheInnerTestIsTheOuters(t *testing.T) {
	needRoot(t)
	for want, says := range map[string][]string{
		"pass":  {"--- PASS: TestFixture", "inner says hello"},
		"fail":  {"--- FAIL: TestFixture", "inner says no"},
		"skip":  {"--- SKIP: TestFixture", "inner says not here"},
		"exit":  {"--- FAIL: TestFixture", "without a verdict"},
		"panic": {"--- FAIL: TestFixture", "inner panics"},
	} {
		t.Run(want, func(t *testing.T) {
			out, err := fixture(t, want).CombinedOutput()
			if failed := err != nil; failed != (says[0] == "--- FAIL: TestFixture") {
				t.Errorf("exit: %v", err)
			}
			for _, s := range says {
				// At the start of a line: "host|" lines are the inner test's.
				if strings.HasPrefix(s, "---") {
					s = "\n" + s
				}
				if !strings.Contains("\n"+string(out), s) {
					t.Errorf("%q is missing in:\n%s", s, out)
				}
			}
		})
	}
}

func TestKilledStarterTakesItsHostAlongAndTheNextOneSweeps(t *testing.T) {
	needRoot(t)
	cmd := fixture(t, "sleep")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	waitFor(t, "the host of the fixture", func() bool {
		for _, d := range children(cmd.Process.Pid) {
			if id := idOf(d); id != "" {
				dir = filepath.Join("/var/tmp", id)
				return len(children(d)) > 0
			}
		}
		return false
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	id := filepath.Base(dir)
	waitFor(t, "the end of the host's processes", func() bool {
		procs, err := filepath.Glob("/sys/fs/cgroup/*/" + id + "/cgroup.procs")
		if err != nil || len(procs) == 0 {
			procs = []string{"/sys/fs/cgroup/" + id + "/cgroup.procs"}
		}
		for _, p := range procs {
			if text, err := os.ReadFile(p); err != nil || len(text) > 0 {
				return false
			}
		}
		return true
	})
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	if err := (throwaway.Command{Argv: []string{"true"}}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	if left := sh(t, "find /sys/fs/cgroup -maxdepth 2 -name "+id); left != "" {
		t.Errorf("left on the machine:\n%s", left)
	}
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 2000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no sign of %s", what)
}

// children are the direct children of a process, of all its threads.
func children(pid int) []int {
	files, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if err != nil {
		return nil
	}
	var all []int
	for _, f := range files {
		text, _ := os.ReadFile(f) // a thread that ended
		for s := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(s); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// idOf reads a host's id from its PID 1's environment.
func idOf(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	_, plan, ok := strings.Cut(string(text), "BULKHEAD_THROWAWAY_PLAN=")
	if !ok {
		return ""
	}
	plan, _, _ = strings.Cut(plan, "\x00")
	var p struct{ ID string }
	if json.Unmarshal([]byte(plan), &p) != nil {
		return ""
	}
	return p.ID
}

func TestOutsideIsNotInside(t *testing.T) {
	if throwaway.Inside() {
		t.Skip("this machine is a throwaway host itself")
	}
	if err := throwaway.Check(); err == nil {
		t.Error("Check says that the machine is a throwaway host")
	}
}

func TestContainerInsideAHostIsNotInside(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestOutsideIsNotInside$", "-test.v=true") // #nosec G204 -- this test itself
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("a process in another network namespace passes for inside: %v\n%s", err, out)
		}
	})
}

func TestWithoutRootItFailsAndSaysWhatToDo(t *testing.T) {
	needRoot(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join("/var/tmp", "bulkhead-throwaway-noroot.test") // go test's own folder is closed to others
	sh(t, "install -m 755 '"+exe+"' "+copied)
	t.Cleanup(func() { _ = os.Remove(copied) })
	cmd := fixture(t, "pass")
	cmd.Path, cmd.Dir = copied, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "sudo make test") {
		t.Errorf("without root: %v\n%s", err, out)
	}
}

// The program, its folder and the folder around both are shown below a fresh
// /tmp, in whatever order they were named.
func TestWhatLiesBelowTmpCanBeShown(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "bulkhead-test-") //nolint:usetesting // below /tmp, wherever TMPDIR points
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"top", "a/b/deep"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	c := throwaway.Command{
		Argv: []string{"ls", filepath.Join(dir, "top"), filepath.Join(dir, "a/b/deep")}, Stdout: &out, Stderr: &out,
		Options: []throwaway.Option{throwaway.Bind(filepath.Join(dir, "a/b/deep"), dir, filepath.Join(dir, "a"))},
	}
	if err := c.Run(t.Context()); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}
