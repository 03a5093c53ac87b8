package proc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/layout"
	"bulkhead/internal/primitive/proc"
	"bulkhead/internal/tool"
	"bulkhead/test/system/throwaway"
)

const (
	idBase = 200000
	groups = "bulkhead-test-proc"
)

// launched starts an agent's launcher that runs code with the interpreters of
// the machine, as an image would hold them, and gives the path of its socket.
func launched(ctx context.Context, t *testing.T) string {
	t.Helper()
	for _, program := range []string{"python3", "bash"} {
		if _, err := os.Stat("/usr/bin/" + program); err != nil {
			t.Skipf("needs %s: apt-get install python3 bash", program)
		}
	}
	h := layout.Default()
	cfg := launcher.Config{Host: h, Place: h.Agent("t", "a"), Account: 5000, Programs: h.Programs("t"), Build: "t", CgroupRoot: groups}
	root := filepath.Join(h.Image("tools"), "rootfs")
	dirs := []string{cfg.Place.State, cfg.Place.Run, cfg.Place.Control(), cfg.Place.Logs(), cfg.Place.ProcDir(), cfg.Programs}
	for _, d := range []string{"usr", "proc", "dev", "tmp", "home/agent", "etc"} {
		dirs = append(dirs, filepath.Join(root, d))
	}
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"bin", "lib", "lib64"} {
		if _, err := os.Stat("/usr/" + l); err == nil {
			if err := os.Symlink("usr/"+l, filepath.Join(root, l)); err != nil {
				t.Fatal(err)
			}
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", filepath.Join(cfg.Programs, "bulkhead-shim"), "bulkhead/cmd/bulkhead-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-p=2")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	of, err := launcher.MeansFor(cfg.CgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = of.Bare.Close() }()
	c, err := launcher.Start(ctx, cfg, of)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Shutdown(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		_ = c.Close()
	})
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Place.ProcSocket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	f, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = f.Close(), ln.Close() }()
	spec := engine.Spec{
		Version: engine.SpecVersion, Team: "t", Agent: "a", Role: engine.RoleRun, Root: engine.Root{Path: root},
		User: engine.User{ID: layout.ProcID, Map: []engine.IDMap{{Inside: layout.ProcID, Host: idBase + layout.ProcID - 1}}},
		Mounts: []engine.Mount{
			{Kind: engine.MountBind, Source: "/usr", Target: "/usr", Exec: true},
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 16 << 20, Mode: 0o1777},
			{Kind: engine.MountTmpfs, Target: "/home/agent", Writable: true, Size: 16 << 20, Mode: 0o700},
		},
		Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/agent"}, Dir: "/home/agent", Hostname: "code",
		Limits: engine.Limits{MemoryBytes: 256 << 20, MilliCPU: 2000, PIDs: 64},
	}
	if err := c.ServeCode(ctx, launcher.CodeConfig{Spec: spec, Running: 8}, f); err != nil {
		t.Fatal(err)
	}
	return cfg.Place.ProcSocket()
}

// gateway is the proc tools on a real launcher.
type gateway struct {
	t     *testing.T
	d     *tool.Dispatcher
	tools *proc.Tools
}

func newGateway(t *testing.T, socket string) *gateway {
	t.Helper()
	g := &gateway{t: t, tools: proc.New(proc.Config{Socket: socket})}
	table, err := tool.NewTable(g.tools.List()...)
	if err != nil {
		t.Fatal(err)
	}
	g.d = tool.New(tool.Config{Table: table, Journal: &journal{}, Allowed: []string{"proc"}, Rate: 1_000_000})
	return g
}

func (g *gateway) call(ctx context.Context, name string, input any, into any) *deny.Reason {
	g.t.Helper()
	raw, err := json.Marshal(input)
	if err != nil {
		g.t.Fatal(err)
	}
	out, reason := g.d.Call(ctx, tool.Caller{Team: "t", Agent: "a"}, name, raw)
	if reason == nil && into != nil {
		if err := json.Unmarshal(out, into); err != nil {
			g.t.Fatalf("%s: %s: %v", name, out, err)
		}
	}
	return reason
}

func code(language, text string, more ...any) map[string]any {
	m := map[string]any{"language": language, "code": text}
	for i := 0; i < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

// processesOfCode counts what runs in cells with the user that code has.
func processesOfCode(t *testing.T) (n int) {
	t.Helper()
	tree, err := cgroup.Open(groups)
	if err != nil {
		t.Fatal(err)
	}
	all, err := tree.Group("t/a")
	if err != nil {
		t.Fatal(err)
	}
	names, err := all.Children()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		g, err := tree.Group("t/a/" + name)
		if err != nil {
			t.Fatal(err)
		}
		pids, err := g.Procs()
		if err != nil {
			continue // it has gone
		}
		for _, pid := range pids {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.Contains(string(raw), "sleep") {
				n++
			}
		}
	}
	return n
}

func TestCodeIsRunForTheAgent(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		socket := launched(ctx, t)
		g := newGateway(t, socket)
		defer g.tools.Close()

		var e proc.Ended
		if reason := g.call(ctx, "agentos.proc_execute", code("python", "print(6*7); import sys; print('e', file=sys.stderr); sys.exit(2)"), &e); reason != nil || e.Stdout != "42\n" || e.Stderr != "e\n" || e.ExitCode != 2 || e.ProcessID == "" {
			t.Fatalf("%+v %v", e, reason)
		}
		if reason := g.call(ctx, "proc_execute", code("bash", "head -c 3000000 /dev/zero | tr '\\0' x; head -c 10 /dev/urandom >&2; echo done >&2"), &e); reason != nil || len(e.Stdout) > 1<<20+200 || !strings.Contains(e.Stdout, "thrown away") || !strings.HasSuffix(e.Stderr, "done\n") || e.ExitCode != 0 {
			t.Errorf("much output: %d bytes, %q, %+v", len(e.Stdout), e.Stderr, reason)
		}
		if reason := g.call(ctx, "proc_execute", code("bash", "echo begun; sleep 300 & sleep 300", "timeoutMs", 300), &e); reason != nil || !e.TimedOut || e.Stdout != "begun\n" || e.ExitCode != 137 || !strings.Contains(e.Stderr, "time was over") {
			t.Errorf("%+v %v", e, reason)
		}
		for _, bad := range []map[string]any{
			code("ruby", "1"), code("bash", ""), code("bash", "1", "timeout", 99), code("bash", "1", "timeout", 300_001), code("bash", strings.Repeat("ä", 1<<20)),
			code("bash", "1", "image", "x"), code("bash", "1", "env", map[string]string{"A": "b"}),
		} {
			if reason := g.call(ctx, "proc_execute", bad, nil); reason == nil || reason.Code != deny.ToolInvalid || len(reason.Fields) == 0 {
				t.Errorf("%.60v: %v", bad, reason)
			}
		}
		// Who hangs up ends the code.
		short, hangUp := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = g.call(short, "proc_execute", code("bash", "sleep 302"), nil) })
		await(t, "the code", func() bool { return processesOfCode(t) == 1 })
		hangUp()
		wg.Wait()
		await(t, "its end", func() bool { return processesOfCode(t) == 0 })

		var spawned []proc.Spawned
		for range 4 {
			var s proc.Spawned
			if reason := g.call(ctx, "proc_spawn", code("bash", "echo up; (sleep 301 &) ; sleep 301"), &s); reason != nil {
				t.Fatal(reason)
			}
			spawned = append(spawned, s)
		}
		if reason := g.call(ctx, "proc_spawn", code("bash", "true"), nil); reason == nil || reason.Code != deny.ToolQuota {
			t.Errorf("a fifth: %v", reason)
		}
		await(t, "eight processes", func() bool { return processesOfCode(t) == 8 })
		var k proc.Killed
		if reason := g.call(ctx, "proc_kill", map[string]string{"pid": spawned[0].ProcessID}, &k); reason != nil || !k.Killed || k.ExitCode != 137 {
			t.Errorf("%+v %v", k, reason)
		}
		if n := processesOfCode(t); n != 6 {
			t.Errorf("%d processes are left when a kill was answered, of 6", n)
		}
		var list struct{ Processes []proc.Listed }
		if reason := g.call(ctx, "proc_list", map[string]string{"processId": spawned[1].ProcessID}, &list); reason != nil || len(list.Processes) != 1 || list.Processes[0].State != "running" || *list.Processes[0].Stdout != "up\n" {
			t.Errorf("%+v %v", list, reason)
		}
		if reason := g.call(ctx, "proc_list", map[string]string{}, &list); reason != nil || len(list.Processes) != 4 || list.Processes[0].State != "exited" || *list.Processes[0].ExitCode != 137 {
			t.Errorf("%+v %v", list, reason)
		}
		if reason := g.call(ctx, "proc_kill", map[string]string{"processId": "p-x"}, nil); reason == nil || reason.Code != deny.ToolMissing {
			t.Error(reason)
		}
		// Another agent that learned the ids, even with the same launcher, has nothing of it.
		thief := newGateway(t, socket)
		for _, s := range spawned {
			for _, name := range []string{"proc_kill", "proc_list"} {
				if reason := thief.call(ctx, name, map[string]string{"processId": s.ProcessID}, nil); reason == nil || reason.Code != deny.ToolMissing {
					t.Errorf("%s of another's process: %v", name, reason)
				}
			}
		}
		if reason := thief.call(ctx, "proc_list", map[string]string{}, &list); reason != nil || len(list.Processes) != 0 {
			t.Errorf("another's processes are listed: %+v %v", list, reason)
		}
		thief.tools.Close()
		if n := processesOfCode(t); n != 6 {
			t.Errorf("%d processes are left of 6 after another had a try, and ended", n)
		}
		// Another gateway of this agent (the next one) knows and leaves nothing.
		g.tools.Close()
		if n := processesOfCode(t); n != 0 {
			t.Errorf("%d processes outlive their gateway", n)
		}
		if os.Getenv("BULKHEAD_BENCH") != "" {
			measure(t.Context(), t, newGateway(t, socket))
		}
	})
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("waited in vain for " + what)
}

// stderrOf is what a program said that failed.
func stderrOf(err error) string {
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		return "\n" + string(e.Stderr)
	}
	return ""
}

// measure compares proc_execute of print(1) with others, turn by turn. Nothing
// is asserted about time.
func measure(ctx context.Context, t *testing.T, g *gateway) {
	const rounds = 21
	podman := append([]string{
		"run", "--rm", "--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--pids-limit=64", "--memory=256m", "--cpus=2",
		"--user=1000:1000", "--log-driver=none", "--volume=/usr:/usr:ro", "--tmpfs=/tmp", "--rootfs", filepath.Join(layout.Default().Image("tools"), "rootfs"),
	}, "/usr/bin/python3", "-I", "-c", "print(1)")
	const podmanRun = "podman run"
	type way struct {
		name string
		run  func() error
	}
	ways := []way{
		{"bare python3 -c", func() error { return exec.CommandContext(ctx, "/usr/bin/python3", "-c", "print(1)").Run() }},
		{"bare python3 -I -c", func() error { return exec.CommandContext(ctx, "/usr/bin/python3", "-I", "-c", "print(1)").Run() }},
		{"bwrap", func() error {
			return exec.CommandContext(ctx, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "python3", "-I", "-c", "print(1)").Run()
		}},
		{podmanRun, func() error {
			out, err := exec.CommandContext(ctx, "podman", podman...).Output() // #nosec G204 -- fixed
			if err == nil && string(out) != "1\n" {
				err = fmt.Errorf("%q", out)
			}
			return err
		}},
		{"proc_execute", func() error {
			var e proc.Ended
			if reason := g.call(ctx, "proc_execute", code("python", "print(1)"), &e); reason != nil {
				return reason
			}
			if e.Stdout != "1\n" {
				return fmt.Errorf("%+v", e)
			}
			return nil
		}},
	}
	if _, err := exec.LookPath("podman"); err != nil {
		t.Log("without podman: it is not installed")
		ways = slices.DeleteFunc(ways, func(w way) bool { return w.name == podmanRun })
	}
	for _, pause := range []time.Duration{150 * time.Millisecond, 0} {
		took := make([][]time.Duration, len(ways))
		for range rounds {
			for i, w := range ways {
				time.Sleep(pause) // in which the pool fills again
				at := time.Now()
				if err := w.run(); err != nil {
					t.Fatalf("%s: %v%s", w.name, err, stderrOf(err))
				}
				took[i] = append(took[i], time.Since(at))
			}
		}
		for i, w := range ways {
			d := took[i]
			slices.Sort(d)
			t.Logf("pause %5s  %-20s min %8s  p50 %8s  p90 %8s", pause, w.name, d[0].Round(10*time.Microsecond), d[len(d)/2].Round(10*time.Microsecond), d[len(d)*9/10].Round(10*time.Microsecond))
		}
	}
}
