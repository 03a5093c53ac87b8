package launcher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/throwaway"
)

const (
	account = 5000
	base    = 200000
	groups  = "bulkhead-test-launcher"
)

func config() launcher.Config {
	h := layout.Default()
	return launcher.Config{Host: h, Place: h.Agent("t", "a"), Account: account, Programs: h.Programs("t"), Build: "t", CgroupRoot: groups}
}

// prepare makes what the warden makes before it starts a launcher.
func prepare(t *testing.T) launcher.Config {
	t.Helper()
	cfg := config()
	for dir, mode := range map[string]os.FileMode{
		cfg.Place.State: 0o755, cfg.Place.Run: 0o755, cfg.Place.Control(): 0o700, cfg.Place.Logs(): 0o700, cfg.Host.Images(): 0o755, cfg.Programs: 0o755,
		cfg.Place.Home(): 0o700, "/var/lib/bulkhead/teams/t/agents/other/home": 0o755,
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(cfg.Place.Home(), base+999, base+999); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(cfg.Host.Image("box"), "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "tmp", "home/agent", "programs", "etc"} {
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
	for _, a := range []string{"sh", "cat", "id", "sleep", "ls", "touch", "true", "grep", "ps", "kill", "tty", "stty", "wc"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(cfg.Programs, "bulkhead-shim"), "bulkhead/cmd/bulkhead-shim")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-p=2")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return cfg
}

// spec is a one-off container that runs a shell script.
func spec(cfg launcher.Config, name, script string) engine.Spec {
	return engine.Spec{
		Version: engine.SpecVersion, Team: "t", Agent: "a", Name: name, Role: engine.RoleRun,
		Root:    engine.Root{Path: filepath.Join(cfg.Host.Image("box"), "rootfs")},
		User:    engine.User{ID: layout.RuntimeID, Map: []engine.IDMap{{Inside: layout.RuntimeID, Host: base + 999}}},
		Mounts:  []engine.Mount{{Kind: engine.MountBind, Source: cfg.Place.Home(), Target: "/home/agent", Writable: true}},
		Command: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Dir: "/", Hostname: "a", Cgroup: "t/a/" + name,
	}
}

func inHost(t *testing.T, f func(ctx context.Context, t *testing.T, cfg launcher.Config)) {
	t.Helper()
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f(ctx, t, prepare(t))
	})
}

func start(ctx context.Context, t *testing.T, cfg launcher.Config) *launcher.Client {
	t.Helper()
	of, err := launcher.MeansFor(cfg.CgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = of.Bare.Close() }()
	c, err := launcher.Start(ctx, cfg, of)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(cfg.Place.Logs(), "launcher.log"))
		t.Fatalf("%v\n%s", err, log)
	}
	return c
}

func TestContainersRunAreLoggedAndEnd(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		c := start(ctx, t, cfg)
		got, err := c.Launch(ctx, launcher.LaunchRequest{Spec: spec(cfg, "one", "echo hello; echo oops >&2; exit 7")})
		if err != nil {
			t.Fatal(err)
		}
		_ = got.PIDFD.Close()
		exit, err := c.Wait(ctx, "one")
		if err != nil || exit.Code != 7 {
			t.Fatalf("exit %v, %v", exit, err)
		}
		log, err := os.ReadFile(filepath.Join(cfg.Place.Logs(), "one.log"))
		if err != nil || !strings.Contains(string(log), " stdout F hello\n") || !strings.Contains(string(log), " stderr F oops\n") {
			t.Errorf("log %q, %v", log, err)
		}
		long, err := c.Launch(ctx, launcher.LaunchRequest{Spec: spec(cfg, "long", "sleep 600 & sleep 600")})
		if err != nil {
			t.Fatal(err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", long.HostPID))
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d", base+999)) || !strings.Contains(string(status), "Seccomp:\t2") {
			t.Errorf("host's view of process %d: %v\n%s", long.HostPID, err, status)
		}
		tree, err := cgroup.Open(groups)
		if err != nil {
			t.Fatal(err)
		}
		g, err := tree.Group("t/a/long")
		if err != nil {
			t.Fatal(err)
		}
		if err := cell.Same("/proc", cell.Identity{PID: long.HostPID, Start: long.Start, UID: base + 999}); err != nil {
			t.Error(err)
		}
		await(t, "both processes in the cgroup", func() bool {
			procs, err := g.Procs()
			return err == nil && len(procs) == 2
		})
		if _, err := c.Launch(ctx, launcher.LaunchRequest{Spec: spec(cfg, "long", "true")}); err == nil {
			t.Error("a second container of the same name started")
		}
		exit, err = c.Stop(ctx, "long", 200*time.Millisecond)
		if err != nil || exit.Signal != "killed" {
			t.Errorf("stop: %v, %v", exit, err)
		}
		if g.Exists() {
			t.Error("the cgroup is left behind")
		}
		if err := c.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := launcher.Connect(ctx, cfg.Place.LauncherSocket()); !errors.Is(err, launcher.ErrGone) {
			t.Errorf("connect after shutdown: %v, want ErrGone", err)
		}
	})
}

func TestAccountCellHidesTheHost(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		c := start(ctx, t, cfg)
		s := spec(cfg, "account", "")
		s.Role, s.User, s.Root, s.Mounts = engine.RoleAccount, engine.User{ID: account}, engine.Root{}, nil
		s.Env = []string{"PATH=/usr/bin:/bin"}
		s.Command = []string{"/bin/sh", "-c", "id -u; ls /var/lib/bulkhead/teams/t/agents; ls / /run; ls /.launcher; cat /etc/shadow; ls -d /proc/1; touch /x; busybox ip a; busybox nc -w 1 203.0.113.10 80; (sleep 300 &) ; echo end"}
		got, err := c.Launch(ctx, launcher.LaunchRequest{Spec: s})
		if err != nil {
			t.Fatal(err)
		}
		_ = got.PIDFD.Close()
		if _, err := c.Wait(ctx, "account"); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(cfg.Place.Logs(), "account.log"))
		if err != nil {
			t.Fatal(err)
		}
		out := string(raw)
		t.Log(out)
		for _, want := range []string{" F 5000\n", "'/.launcher': Permission denied", "/etc/shadow: No such file", "'/proc/1': No such file", "touch: cannot touch '/x': Read-only", "F end"} {
			if !strings.Contains(out, want) {
				t.Errorf("missing %q", want)
			}
		}
		for _, bad := range []string{"F other", "F eth0", "F home\n", "203.0.113.10/"} {
			if strings.Contains(out, bad) {
				t.Errorf("it sees %q", bad)
			}
		}
		// The process that it left behind is dead too.
		ps, err := exec.Command("pgrep", "-u", fmt.Sprint(account)).CombinedOutput()
		if err == nil {
			t.Errorf("processes of the account are left: %s", ps)
		}
		if err := c.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		_ = c.Close()
	})
}

// TestFixtureStarter is the launcher's starter in the test below.
func TestFixtureStarter(t *testing.T) {
	if os.Getenv("BULKHEAD_TEST_STARTER") == "" {
		return // passes: it is only a fixture
	}
	throwaway.RequireInside(t)
	c := start(t.Context(), t, config())
	got, err := c.Launch(t.Context(), launcher.LaunchRequest{Spec: spec(config(), "long", "while :; do echo tick; sleep 0.05; done")})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("started %d %d\n", c.PID(), got.HostPID)
	select {}
}

func TestLauncherSurvivesItsStarterAndIsFoundAgain(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		starter := exec.CommandContext(ctx, exe, "-test.run=^TestFixtureStarter$")
		starter.Env = append(os.Environ(), "BULKHEAD_TEST_STARTER=1")
		out, err := starter.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := starter.Start(); err != nil {
			t.Fatal(err)
		}
		var pid, child int
		if _, err := fmt.Fscanf(out, "started %d %d\n", &pid, &child); err != nil {
			t.Fatal(err)
		}
		if err := starter.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = starter.Wait()
		c, err := launcher.Connect(ctx, cfg.Place.LauncherSocket())
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.List(ctx)
		if err != nil || len(list) != 1 || list[0].HostPID != child || list[0].State != launcher.StateRunning || c.PID() != pid {
			t.Fatalf("found launcher %d with %+v, %v; want %d with process %d", c.PID(), list, err, pid, child)
		}
		_ = list[0].PIDFD.Close()
		log := filepath.Join(cfg.Place.Logs(), "long.log")
		size := func() int64 {
			st, err := os.Stat(log)
			if err != nil {
				t.Fatal(err)
			}
			return st.Size()
		}
		before := size()
		await(t, "the log to grow", func() bool { return size() > before })
		// Its end takes everything along.
		events := make(chan launcher.Event, 8)
		watched := make(chan error, 1)
		go func() {
			watched <- c.Watch(ctx, func(e launcher.Event) error {
				events <- e
				return nil
			})
		}()
		if e := <-events; e.Kind != launcher.EventStarted || e.Container.Name != "long" {
			t.Errorf("event %+v", e)
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		<-c.Exited()
		if err := <-watched; !errors.Is(err, launcher.ErrGone) {
			t.Errorf("watch ended with %v, want ErrGone", err)
		}
		await(t, "the end of the container", func() bool {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
			return err != nil || strings.Contains(string(raw), ") Z ")
		})
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Connections that are kept for a later run must not hold up the end.
func TestAShutdownDoesNotWaitForIdleConnections(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		c := start(ctx, t, cfg)
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: cfg.Place.LauncherSocket(), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		idle := wire.New(u)
		defer func() { _ = idle.Close() }()
		if _, err := idle.Greet(launcher.Protocol, launcher.Version); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"one", "two"} { // the second uses what the first left
			got, err := c.Run(ctx, launcher.LaunchRequest{Spec: spec(cfg, name, "exit 3")}, func(o launcher.Container) error { return o.PIDFD.Close() })
			if err != nil || got.Code != 3 {
				t.Errorf("run %s: %v, %v", name, got, err)
			}
		}
		if err := c.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
