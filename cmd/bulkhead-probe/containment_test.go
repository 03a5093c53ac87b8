package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/evidence/attempt"
)

func TestHarmfulAttemptsAreMadeInContainedPlacesOnly(t *testing.T) {
	// Numbers of some other namespaces; what counts is which are the initial
	// ones, and which are to be spared.
	const user, pid, mount, net = 4026532001, 4026532002, 4026532003, 4026532004
	spare := []uint64{4026531840, 4026531841}
	for name, tc := range map[string]struct {
		w     where
		spare []uint64
		ok    bool
	}{
		"a container in its own user namespace":            {where{user, pid, mount, net, true}, nil, true},
		"an ordinary id without capabilities":              {where{initialUser, pid, mount, net, false}, nil, true},
		"a privileged decoy away from its starter":         {where{initialUser, pid, mount, net, true}, spare, true},
		"root on the machine":                              {where{initialUser, initialPID, initialMount, initialNet, true}, nil, false},
		"root on the machine with made-up numbers":         {where{initialUser, initialPID, 4026531840, 4026531841, true}, []uint64{1, 2}, false},
		"root in a PID namespace, nothing else new":        {where{initialUser, pid, initialMount, initialNet, true}, []uint64{1, 2}, false},
		"a privileged decoy that nobody vouches for":       {where{initialUser, pid, mount, net, true}, nil, false},
		"half a list of what to spare":                     {where{initialUser, pid, mount, net, true}, spare[:1], false},
		"a decoy in its starter's mount namespace":         {where{initialUser, pid, spare[0], net, true}, spare, false},
		"a decoy in its starter's network":                 {where{initialUser, pid, mount, spare[1], true}, spare, false},
		"a decoy in the first network":                     {where{initialUser, pid, mount, initialNet, true}, spare, false},
		"a place of which the kernel did not say anything": {where{}, spare, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.w.contained(tc.spare); (err == nil) != tc.ok {
				t.Fatalf("contained says %v, want ok = %v", err, tc.ok)
			}
		})
	}
}

// probe builds the program.
func probe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bulkhead-probe")
	c := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// put runs the probe where this test runs.
func put(t *testing.T, path string, q attempt.Request) attempt.Answer {
	t.Helper()
	q.Version, q.Nonce = attempt.Version, "0123456789"
	raw, err := json.Marshal(attempt.Batch{Version: attempt.Version, Attempts: []attempt.Request{q}})
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), path)
	c.Stdin = bytes.NewReader(raw)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", q.Attempt, err)
	}
	a, err := attempt.ParseAnswer(out, q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestTheRealProbeHarmsNoMachine runs every harmful attempt as root in the
// namespaces of this test, however the request is dressed up.
func TestTheRealProbeHarmsNoMachine(t *testing.T) {
	w, err := here()
	if err != nil || w.user != initialUser || w.pid != initialPID || !w.privileged {
		t.Skipf("this is about root in a machine's first namespaces (%+v, %v)", w, err)
	}
	path := probe(t)
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for name, k := range kinds() {
		if !k.harmful {
			continue
		}
		for _, spare := range [][]uint64{nil, {1, 2}, {w.mount, w.net}} {
			tried++
			a := put(t, path, attempt.Request{Attempt: name, Spare: spare, Table: "bulkhead-probe-test-no-such-table"})
			if a.Outcome != attempt.Error || !strings.Contains(a.Detail, "not contained") {
				t.Errorf("%s sparing %v on the machine: %+v", name, spare, a)
			}
		}
	}
	if tried < 15 {
		t.Errorf("only %d were tried", tried)
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the machine's mounts changed")
	}
}

func TestAnUnknownAttemptIsAnError(t *testing.T) {
	a := put(t, probe(t), attempt.Request{Attempt: "file.everything"})
	if a.Outcome != attempt.Error {
		t.Fatalf("got %+v", a)
	}
}

// TestTheProbeCannotBeRewrittenByItsOwnID starts it under an ordinary id, and
// opens its memory as the same id.
func TestTheProbeCannotBeRewrittenByItsOwnID(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become another id")
	}
	path := probe(t)
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	// The same program as a plain child shows that the check can fail.
	for _, tc := range []struct {
		args []string
		open bool
	}{{nil, false}, {[]string{childArg}, true}} {
		c := exec.CommandContext(t.Context(), path, tc.args...)
		c.SysProcAttr, c.Dir, c.Env = nobody, "/", []string{}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		waitUntilReading(t, c.Process.Pid)
		cat := exec.CommandContext(t.Context(), "dd", "if=/proc/"+itoa(c.Process.Pid)+"/mem", "count=0")
		cat.SysProcAttr, cat.Dir = nobody, "/"
		out, err := cat.CombinedOutput()
		if (err == nil) != tc.open {
			t.Errorf("opening the memory of %v: %v (%s), want open = %v", tc.args, err, out, tc.open)
		}
		_ = in.Close()
		_ = c.Wait()
	}
}
