package launcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// codeSpec is a cell with the interpreters of the machine, as an image would
// hold them.
func codeSpec(t *testing.T, cfg launcher.Config) engine.Spec {
	t.Helper()
	for _, program := range []string{"python3", "node", "bash"} {
		if _, err := os.Stat("/usr/bin/" + program); err != nil {
			t.Skipf("needs %s: apt-get install python3 nodejs bash", program)
		}
	}
	root := filepath.Join(cfg.Host.Image("tools"), "rootfs")
	for _, d := range []string{"usr", "proc", "dev", "tmp", "home/agent", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"bin", "lib", "lib64"} {
		if _, err := os.Stat("/usr/" + l); err == nil {
			if err := os.Symlink("usr/"+l, filepath.Join(root, l)); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	return engine.Spec{
		Version: engine.SpecVersion, Team: "t", Agent: "a", Role: engine.RoleRun,
		Root: engine.Root{Path: root},
		User: engine.User{ID: layout.ProcID, Map: []engine.IDMap{{Inside: layout.ProcID, Host: base + layout.ProcID - 1}}},
		Mounts: []engine.Mount{
			{Kind: engine.MountBind, Source: "/usr", Target: "/usr", Exec: true},
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 16 << 20, Mode: 0o1777},
			{Kind: engine.MountTmpfs, Target: "/home/agent", Writable: true, Size: 16 << 20, Mode: 0o700},
		},
		Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/agent", "TMPDIR=/tmp"}, Dir: "/home/agent", Hostname: "code",
		Limits: engine.Limits{MemoryBytes: 256 << 20, MilliCPU: 2000, PIDs: 64, FileBytes: 4 << 20},
	}
}

// coder speaks the code protocol.
type coder struct {
	t    *testing.T
	conn *wire.Conn
}

func codeConn(ctx context.Context, t *testing.T, path string) *coder {
	t.Helper()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := &coder{t, wire.New(raw.(*net.UnixConn))}
	if _, err := c.conn.Greet(wire.CodeProtocol, wire.CodeVersion); err != nil {
		t.Fatal(err)
	}
	return c
}

// ran is how a piece of code went.
type ran struct {
	container      string
	stdout, stderr string
	exit           wire.CodeExited
	refused        string
}

// start sends code, and gives what reads the rest.
func (c *coder) start(language, code string, limit time.Duration) (string, func() ran) {
	c.t.Helper()
	if err := c.conn.Send(7, wire.VerbRunCode, wire.CodeRequest{Language: language, Code: code, Limits: wire.CodeLimits{Millis: limit.Milliseconds()}}); err != nil {
		c.t.Fatal(err)
	}
	m, files, err := c.conn.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	if m.Verb == wire.VerbError {
		return "", func() ran { return ran{refused: string(m.Body)} }
	}
	var started wire.CodeStarted
	if err := json.Unmarshal(m.Body, &started); err != nil || len(files) != 2 || m.ID != 7 {
		c.t.Fatalf("%s %s with %d descriptors: %v", m.Verb, m.Body, len(files), err)
	}
	return started.Container, func() ran {
		r := ran{container: started.Container}
		var wg sync.WaitGroup
		for i, to := range []*string{&r.stdout, &r.stderr} {
			wg.Go(func() {
				raw, _ := io.ReadAll(files[i])
				*to = string(raw)
				_ = files[i].Close()
			})
		}
		m, _, err := c.conn.Recv()
		if err != nil || m.Verb != wire.VerbExited {
			c.t.Fatalf("%s %s %v", m.Verb, m.Body, err)
		}
		wg.Wait()
		if err := json.Unmarshal(m.Body, &r.exit); err != nil {
			c.t.Fatal(err)
		}
		return r
	}
}

func (c *coder) run(language, code string) ran {
	c.t.Helper()
	_, rest := c.start(language, code, 20*time.Second)
	return rest()
}

func TestCodeRunsInCellsOfItsOwn(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		c := start(ctx, t, cfg)
		path := cfg.Place.ProcSocket()
		serve := func(running int) {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			_ = os.Remove(path)
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			ln.SetUnlinkOnClose(false)
			f, err := ln.File()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.ServeCode(ctx, launcher.CodeConfig{Spec: codeSpec(t, cfg), Running: running}, f); err != nil {
				t.Fatal(err)
			}
			_, _ = f.Close(), ln.Close()
		}
		serve(2)
		tree, err := cgroup.Open(groups)
		if err != nil {
			t.Fatal(err)
		}
		gone := func(container string) bool {
			g, err := tree.Group("t/a/" + container)
			if err != nil {
				t.Fatal(err)
			}
			procs, err := g.Procs()
			return err != nil || len(procs) == 0
		}
		one := codeConn(ctx, t, path)

		t.Run("each language", func(t *testing.T) {
			for range 2 { // the second is run by an interpreter that waits
				for language, code := range map[string]string{
					"python":     "import sys\nprint('out'); print('err', file=sys.stderr); assert sys.stdin.read() == ''; assert __name__ == '__main__'; sys.exit(3)",
					"javascript": "const fs=require('fs'); console.log('out'); console.error('err'); if (fs.readFileSync(0).length || require.main !== module) throw 1; process.exitCode = 3",
					"bash":       "echo out > /dev/stdout; echo err > /dev/stderr; [ -z \"$(cat)\" ] || exit 9; [ -z \"$_code\" ] || exit 8; exit 3",
				} {
					r := one.run(language, code)
					if r.stdout != "out\n" || r.stderr != "err\n" || r.exit.Code != 3 || r.exit.TimedOut {
						t.Errorf("%s: %+v", language, r)
					}
				}
			}
			r := one.run("python", "def f():\n    raise ValueError('x')\nf()")
			if !strings.Contains(r.stderr, "raise ValueError('x')") || strings.Contains(r.stderr, "<string>") || r.exit.Code != 1 {
				t.Errorf("a traceback has its lines: %+v", r)
			}
			if r = one.run("python", "# "+strings.Repeat("x", wire.MaxCode-20)+"\nprint('ä')"); r.stdout != "ä\n" {
				t.Errorf("long code: %+v", r.exit)
			}
			for _, bad := range [][2]string{{"ruby", "1"}, {"python", strings.Repeat("x", wire.MaxCode+1)}} {
				if r := one.run(bad[0], bad[1]); r.refused == "" {
					t.Errorf("%s was run: %+v", bad[0], r)
				}
			}
		})
		t.Run("nothing of others is there", func(t *testing.T) {
			t.Setenv("BULKHEAD_TEST_SECRET", "s3cret")
			first := one.run("bash", "echo left > /tmp/left; echo left > ~/left; ls /tmp ~")
			if !strings.Contains(first.stdout, "left") {
				t.Fatalf("%+v", first)
			}
			r := one.run("bash", `id -u; ls -A /tmp ~; env | sort; ls /proc | grep -c '^[0-9]'; ls /sys /var /run /root 2>&1; cat /proc/net/dev | tail -n +3; ls -l /proc/self/fd
touch /x /usr/x /etc/x; cat /proc/1/cmdline | tr '\0' ' '; echo > /dev/tcp/203.0.113.10/80; tr -d '\0' < /proc/1/environ`)
			t.Log(r.stdout, r.stderr)
			for _, bad := range []string{"left", "s3cret", "BULKHEAD", "eth0", "203.0.113.10/80: connected", "socket:", "memfd"} {
				if strings.Contains(r.stdout, bad) {
					t.Errorf("it sees %q", bad)
				}
			}
			if !strings.HasPrefix(r.stdout, fmt.Sprintln(layout.ProcID)) || strings.Count(r.stderr, "touch: cannot touch") != 3 || !strings.Contains(r.stderr, "Network is unreachable") {
				t.Errorf("%+v", r)
			}
		})
		t.Run("limits", func(t *testing.T) {
			for name, c := range map[string]struct{ language, code, want string }{
				"memory":    {"python", "x = bytearray(1 << 30)\nprint('got it')", ""},
				"file size": {"bash", "trap '' XFSZ; head -c 5000000 /dev/zero > /tmp/f; stat -c %s /tmp/f", "4194304\n"},
				"disk":      {"bash", "for i in 1 2 3 4 5; do head -c 4000000 /dev/zero > /tmp/f$i || exit 0; done; echo fits", ""},
				"processes": {"python", "import os,time\nfor i in range(200):\n    if os.fork() == 0: time.sleep(500)\nprint('fits')", ""},
				"threads":   {"python", "import threading,time\nfor i in range(200): threading.Thread(target=time.sleep,args=(1,),daemon=True).start()\nprint('fits')", ""},
			} {
				if r := one.run(c.language, c.code); r.stdout != c.want && (c.want != "" || strings.Contains(r.stdout, "fits") || strings.Contains(r.stdout, "got it")) {
					t.Errorf("%s: %+v", name, r)
				}
			}
		})
		t.Run("the time is over", func(t *testing.T) {
			name, rest := one.start("bash", "(trap '' TERM INT HUP; setsid sleep 500 & sleep 500 & sleep 500 & wait) & echo begun; while :; do :; done", time.Second)
			if gone(name) {
				t.Error("the test does not see the code run")
			}
			r := rest()
			if !r.exit.TimedOut || r.stdout != "begun\n" || r.exit.Signal != "killed" || !gone(name) {
				t.Errorf("%+v, gone %t", r, gone(name))
			}
		})
		t.Run("killed", func(t *testing.T) {
			name, rest := one.start("python", "import os,time\nfor i in range(5): os.fork()\nprint('x')\ntime.sleep(500)", time.Minute)
			await(t, "children", func() bool {
				g, err := tree.Group("t/a/" + name)
				if err != nil {
					t.Fatal(err)
				}
				procs, _ := g.Procs()
				return len(procs) == 32
			})
			if err := one.conn.Send(8, wire.VerbKillCode, struct{}{}); err != nil {
				t.Fatal(err)
			}
			if r := rest(); r.exit.TimedOut || r.exit.Code != 137 || !gone(name) {
				t.Errorf("%+v, gone %t", r.exit, gone(name))
			}
			if r := one.run("bash", "echo again"); r.stdout != "again\n" {
				t.Errorf("after a kill: %+v", r)
			}
		})
		t.Run("who leaves takes it along, and no more run than may", func(t *testing.T) {
			a, b := codeConn(ctx, t, path), codeConn(ctx, t, path)
			na, _ := a.start("bash", "sleep 500", time.Minute)
			nb, _ := b.start("bash", "sleep 500", time.Minute)
			if r := one.run("bash", "echo third"); !strings.Contains(r.refused, "as many as may") {
				t.Errorf("%+v", r)
			}
			_ = a.conn.Close()
			await(t, "the end", func() bool { return gone(na) })
			await(t, "a place", func() bool { return one.run("bash", "echo third").stdout == "third\n" })
			serve(2) // another configuration: what ran by the former ends
			if !gone(nb) {
				t.Error("code of the former configuration runs on")
			}
			_ = b.conn.Close()
		})
		t.Run("nobody else may ask", func(t *testing.T) {
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("setpriv", "--reuid=5000", "--clear-groups", "--regid=5000", "/usr/bin/python3", "-c", `import socket,sys
s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(5); print(s.recv(10))`, path).CombinedOutput()
			if err != nil || string(out) != "b''\n" {
				t.Errorf("%s %v", out, err)
			}
		})
		last := codeConn(ctx, t, path)
		name, _ := last.start("bash", "sleep 500", time.Minute)
		if err := c.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if !gone(name) {
			t.Error("code outlives its launcher")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
