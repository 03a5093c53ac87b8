package launcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/wire"
)

// withShim makes a runtime whose command runs under the shim.
func withShim(cfg launcher.Config, name, script string) launcher.LaunchRequest {
	s := spec(cfg, name, script)
	s.Role = engine.RoleRuntime
	s.Init = []string{"/programs/bulkhead-shim", "init"}
	s.Mounts = append(s.Mounts,
		engine.Mount{Kind: engine.MountBind, Source: cfg.Programs, Target: "/programs", Exec: true},
		engine.Mount{Kind: engine.MountTmpfs, Target: "/tmp", Size: 16 << 20, Mode: 0o1777, Writable: true},
		engine.Mount{Kind: engine.MountBind, Source: cfg.Place.GatewayDir(), Target: "/tmp/gateway"},
	)
	s.Network = engine.Network{Loopback: []netip.Prefix{netip.MustParsePrefix("11.77.0.0/16")}, UnprivilegedPorts: true}
	return launcher.LaunchRequest{Spec: s, Shim: &engine.ShimConfig{Version: 1, Build: "t", Mode: engine.ShimService}}
}

// dialShim waits until the shim answers.
func dialShim(ctx context.Context, t *testing.T, socket string) *wire.Conn {
	t.Helper()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.New(raw.(*net.UnixConn))
	if err := conn.Unix().SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Greet(wire.ShimProtocol, wire.ShimVersion); err != nil {
		t.Fatal(err)
	}
	if err := conn.Unix().SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func body[T any](t *testing.T, m wire.Message) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(m.Body, &v); err != nil {
		t.Fatalf("%s %s: %v", m.Verb, m.Body, err)
	}
	return v
}

// runExec starts a process through the shim and gives its output and exit.
func runExec(ctx context.Context, t *testing.T, socket string, r wire.ExecRequest) (string, wire.ExecExited) {
	t.Helper()
	conn := dialShim(ctx, t, socket)
	defer func() { _ = conn.Close() }()
	if err := conn.Send(1, wire.VerbExec, r); err != nil {
		t.Fatal(err)
	}
	m, files, err := conn.Recv()
	if err != nil || m.Verb != wire.VerbStarted {
		t.Fatalf("%s %s %v", m.Verb, m.Body, err)
	}
	want := 3
	if r.Terminal {
		want = 1
	}
	if len(files) != want {
		t.Fatalf("%d descriptors came, want %d", len(files), want)
	}
	var out bytes.Buffer
	if r.Terminal {
		_, _ = io.Copy(&out, files[0]) // ends with EIO, as terminals do
	} else {
		_ = files[0].Close()
		for _, f := range files[1:] {
			if _, err := io.Copy(&out, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, f := range files {
		_ = f.Close()
	}
	m, _, err = conn.Recv()
	if err != nil || m.Verb != wire.VerbExited {
		t.Fatalf("%s %s %v", m.Verb, m.Body, err)
	}
	return out.String(), body[wire.ExecExited](t, m)
}

func TestExecThroughTheShimIsConfinedLikeTheCommand(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		if err := os.MkdirAll(cfg.Place.GatewayDir(), 0o755); err != nil {
			t.Fatal(err)
		}
		c := start(ctx, t, cfg)
		defer func() { _ = c.Shutdown(ctx); _ = c.Close() }()
		got, err := c.Launch(ctx, withShim(cfg, "runtime", "trap 'echo got it; exit 3' TERM; echo up; while :; do sleep 0.05; done"))
		if err != nil {
			t.Fatal(err)
		}
		_ = got.PIDFD.Close()
		socket := cfg.Place.ShimSocket("runtime")
		out, exit := runExec(ctx, t, socket, wire.ExecRequest{
			Argv: []string{"sh", "-c", "echo $X; grep -E 'Seccomp:|NoNew|CapEff|CapBnd' /proc/self/status; cat /proc/self/cgroup; ls -d /proc/1; cat /proc/1/environ; touch /etc/x; touch /proc/x; touch /home/agent/y && echo wrote; exit 5"}, Env: []string{"X=y"},
		})
		t.Log(out)
		if exit.Code != 5 {
			t.Errorf("exit %+v", exit)
		}
		for _, want := range []string{"y\n", "Seccomp:\t2", "NoNewPrivs:\t1", "CapBnd:\t0000000000000000", "/proc/1: No such file", "/proc/1/environ", "/etc/x: Read-only", "wrote"} {
			if !strings.Contains(out, want) {
				t.Errorf("missing %q", want)
			}
		}
		// The cgroup as the host sees it.
		conn := dialShim(ctx, t, socket)
		if err := conn.Send(1, wire.VerbExec, wire.ExecRequest{Argv: []string{"sh", "-c", "sleep 4242 & sleep 4242"}}); err != nil {
			t.Fatal(err)
		}
		if m, files, err := conn.Recv(); err != nil || m.Verb != wire.VerbStarted {
			t.Fatal(m.Verb, err)
		} else {
			defer func() {
				for _, f := range files {
					_ = f.Close()
				}
			}()
		}
		find := func() []string {
			var found []string
			dirs, _ := filepath.Glob("/proc/[0-9]*")
			for _, d := range dirs {
				if raw, _ := os.ReadFile(d + "/cmdline"); bytes.Equal(raw, []byte("sleep\x004242\x00")) {
					found = append(found, d)
				}
			}
			return found
		}
		await(t, "two processes of the exec", func() bool { return len(find()) == 2 })
		for _, d := range find() {
			raw, err := os.ReadFile(d + "/cgroup")
			if err != nil || !strings.Contains(string(raw), "/"+groups+"/t/a/runtime\n") {
				t.Errorf("cgroup of an exec: %q, %v", raw, err)
			}
			for _, ns := range []string{"net", "mnt", "pid", "user", "ipc", "uts"} {
				a, _ := os.Readlink(d + "/ns/" + ns)
				b, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", got.HostPID, ns))
				if a == "" || a != b {
					t.Errorf("namespace %s of an exec is %q, of its container %q", ns, a, b)
				}
			}
		}
		// The operator leaves: the session goes.
		_ = conn.Close()
		await(t, "the end of the session", func() bool { return len(find()) == 0 })

		out, exit = runExec(ctx, t, socket, wire.ExecRequest{Argv: []string{"sh", "-c", "tty; stty size; echo done"}, Terminal: true, Rows: 33, Cols: 99})
		if !strings.Contains(out, "/dev/pts/0") || !strings.Contains(out, "33 99") || exit.Code != 0 {
			t.Errorf("terminal: %q %+v", out, exit)
		}
		if _, exit = runExec(ctx, t, socket, wire.ExecRequest{Argv: []string{"sh", "-c", "kill -9 $$"}}); exit.Code != 137 || exit.Signal != "killed" {
			t.Errorf("killed: %+v", exit)
		}
		conn = dialShim(ctx, t, socket)
		if err := conn.Send(1, wire.VerbExec, wire.ExecRequest{Argv: []string{"nonsense"}}); err != nil {
			t.Fatal(err)
		}
		if m, _, err := conn.Recv(); err != nil || m.Verb != wire.VerbError || body[wire.Failure](t, m).Exit != 127 {
			t.Errorf("a missing program: %s %s %v", m.Verb, m.Body, err)
		}
		_ = conn.Close()
		stopped, err := c.Stop(ctx, "runtime", 10*time.Second)
		if err != nil || stopped.Code != 3 {
			t.Errorf("stop: %v, %v; want the command's own exit code 3", stopped, err)
		}
	})
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Errorf("waited in vain for %s", what)
}

// gateway takes listeners once, answers one connection on the first of them,
// and gives what it was asked.
func gateway(t *testing.T, l *net.UnixListener) (listeners []wire.Listener, serve func() string, end func()) {
	t.Helper()
	raw, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.New(raw)
	if _, err := conn.Greet(wire.GatewayProtocol, wire.GatewayVersion); err != nil {
		t.Fatal(err)
	}
	m, files, err := conn.Recv()
	if err != nil || m.Verb != wire.VerbListen {
		t.Fatal(m.Verb, err)
	}
	req := body[wire.ListenRequest](t, m)
	if req.Token != "secret" {
		t.Errorf("token %q", req.Token)
	}
	if err := conn.Send(m.ID, wire.VerbOK, struct{}{}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.FileListener(files[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	return req.Listeners, func() string {
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("from the gateway\n"))
		name := c.LocalAddr().String()
		_ = c.Close()
		return name
	}, func() { _ = ln.Close(); _ = conn.Close() }
}

func TestListenersSurviveTheGateway(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		if err := os.MkdirAll(cfg.Place.GatewayDir(), 0o755); err != nil {
			t.Fatal(err)
		}
		open := func() *net.UnixListener {
			_ = os.Remove(cfg.Place.GatewaySocket())
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Place.GatewaySocket(), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			if err := os.Chmod(cfg.Place.GatewaySocket(), 0o666); err != nil {
				t.Fatal(err)
			}
			return l
		}
		c := start(ctx, t, cfg)
		defer func() { _ = c.Shutdown(ctx); _ = c.Close() }()
		r := withShim(cfg, "runtime", "")
		r.Shim.Mode, r.Shim.Token, r.Shim.GatewaySocket = engine.ShimSession, "secret", "/tmp/gateway/gateway.sock"
		r.Shim.Listeners = []wire.Listener{{Address: "127.0.0.1:3128"}, {Address: "11.77.0.5:443", Target: "api.example.com:443"}}
		got, err := c.Launch(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.PIDFD.Close()
		socket := cfg.Place.ShimSocket("runtime")
		state := func() wire.ShimState {
			conn := dialShim(ctx, t, socket)
			defer func() { _ = conn.Close() }()
			if err := conn.Send(1, wire.VerbState, struct{}{}); err != nil {
				t.Fatal(err)
			}
			m, _, err := conn.Recv()
			if err != nil || m.Verb != wire.VerbOK {
				t.Fatal(m.Verb, err)
			}
			return body[wire.ShimState](t, m)
		}
		if st := state(); st.Ready || st.Waiting == "" {
			t.Errorf("ready without a gateway: %+v", st)
		}
		for range 2 { // the second one is a restarted gateway
			l := open()
			_, serve, end := gateway(t, l)
			await(t, "readiness", func() bool { return state().Ready })
			if st := state(); st.Listeners != 2 || st.Landlock < 6 {
				t.Errorf("state %+v", st)
			}
			asked := make(chan string, 1)
			go func() { asked <- serve() }()
			out, _ := runExec(ctx, t, socket, wire.ExecRequest{Argv: []string{"busybox", "nc", "11.77.0.5", "443"}})
			if out != "from the gateway\n" {
				t.Errorf("client read %q", out)
			}
			if at := <-asked; at != "11.77.0.5:443" {
				t.Errorf("the gateway was reached at %s", at)
			}
			end()
			_ = l.Close()
			await(t, "the loss to show", func() bool { return !state().Ready })
		}
	})
}
