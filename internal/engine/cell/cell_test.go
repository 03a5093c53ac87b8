package cell_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/layout"
	"bulkhead/test/system/throwaway"
)

// base is the first id of the range that these tests use.
const base = 200000

func host(inside uint32) uint32 { return base + inside - 1 }

// bench is what every test of a cell needs: a root file system of busybox, the
// program, and cgroups.
type bench struct {
	t       *testing.T
	root    string
	program string
	groups  *cgroup.Tree
}

// inHost runs f in a throwaway host with everything ready.
func inHost(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		b := &bench{t: t, root: "/var/lib/bulkhead/images/t/rootfs", program: "/var/lib/bulkhead/programs/t/bulkhead-shim"}
		makeRoot(t, b.root)
		build(t, "bulkhead/cmd/bulkhead-shim", b.program)
		var err error
		if b.groups, err = cgroup.Open("bulkhead-test-cell"); err != nil {
			t.Fatal(err)
		}
		f(t, b)
	})
}

func makeRoot(t *testing.T, root string) {
	t.Helper()
	for _, d := range []string{"bin", "etc", "proc", "dev", "tmp", "sys", "home/agent", "run/gateway", "work", "bulkhead"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox-static: apt-get install busybox-static")
	}
	raw, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), raw, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"sh", "cat", "id", "sleep", "ip", "ls", "touch", "mount", "unshare", "true", "false", "env", "hostname", "dd", "ps", "grep", "kill", "stty", "tty", "wc", "head", "ulimit", "nc", "mkdir"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"etc/hosts", "etc/passwd", "etc/group"} {
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func build(t *testing.T, pkg, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-p=2")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// spec is a one-off run of a shell command.
func (b *bench) spec(name, script string) engine.Spec {
	return engine.Spec{
		Version: engine.SpecVersion, Team: "t", Agent: "a", Name: name, Role: engine.RoleRun,
		Root: engine.Root{Path: b.root},
		User: engine.User{ID: layout.RuntimeID, Map: []engine.IDMap{{Inside: layout.RuntimeID, Host: host(layout.RuntimeID)}}},
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Size: 16 << 20, Mode: 0o1777, Writable: true},
		},
		Command: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Dir: "/", Hostname: "cell",
		Cgroup: "t/a/" + name,
	}
}

// run starts a Spec, waits for its end and gives what it printed.
func (b *bench) run(s engine.Spec, change ...func(*cell.Options)) (string, cell.Exit) {
	b.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	opt := cell.Options{Program: b.program, Cgroups: b.groups, Stdout: w, Stderr: w}
	for _, c := range change {
		c(&opt)
	}
	p, err := cell.Start(s, opt)
	_ = w.Close()
	if err != nil {
		b.t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := io.Copy(&out, r); err != nil {
		b.t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		b.t.Fatal(err)
	}
	return out.String(), exit
}

func TestProfileIsReadBackFromTheRunningProcess(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		out, exit := b.run(b.spec("status", "cat /proc/self/status /proc/self/uid_map; id; hostname; ls /dev /proc/1/fd; ip a; cat /proc/self/cgroup; ulimit -n; ulimit -c; echo pid $$"))
		t.Log(out)
		if exit.Code != 0 && exit.Code != 1 {
			t.Fatal(exit)
		}
		for _, want := range []string{
			"Seccomp:\t2", "NoNewPrivs:\t1", "CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
			"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "Uid:\t1000\t1000\t1000\t1000", "Groups:\t \n", "pid 1\n", "\ncell\n", "inet 127.0.0.1",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("missing %q", want)
			}
		}
	})
}
