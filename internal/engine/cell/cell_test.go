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
	opt := cell.Options{Cgroups: b.groups, Stdout: w, Stderr: w}
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

func TestUserZeroDoesNotExistInside(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		out, _ := b.run(b.spec("map", "cat /proc/self/uid_map /proc/self/gid_map"))
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) != 3 || f[0] != "1000" || f[1] != "200999" || f[2] != "1" {
				t.Errorf("map line %q, want 1000 200999 1", line)
			}
		}
	})
}

func TestWhatACellMayNotDo(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		home := "/var/lib/bulkhead/agents/home"
		if err := os.MkdirAll(home, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(home, int(host(1000)), int(host(1000))); err != nil {
			t.Fatal(err)
		}
		cases := []struct {
			name, script string
			want         string // in the output
		}{
			{"write to the root", "touch /x", "Read-only file system"},
			{"write to /etc", "echo a > /etc/hosts", "Read-only file system"},
			{"add a device", "touch /dev/x", "Read-only file system"},
			{"mount", "mount -t tmpfs x /tmp", "permission denied"},
			{"unshare", "unshare -U true", "Operation not permitted"},
			{"run from /tmp", "cp /bin/busybox /tmp/true; busybox cp /bin/busybox /tmp/true; /tmp/true", "Permission denied"},
			{"read kcore", "busybox dd if=/proc/kcore bs=1 count=1 | busybox wc -c", "0"},
			{"raise the low port limit", "echo 1 > /proc/sys/net/ipv4/ip_unprivileged_port_start", "Read-only file system"},
			{"bring a link down", "ip link set lo down", "Operation not permitted"},
		}
		for i, c := range cases {
			s := b.spec("no"+string(rune('a'+i)), c.script+"; echo done")
			out, exit := b.run(s)
			if !strings.Contains(out, c.want) {
				t.Errorf("%s: want %q in %q (%v)", c.name, c.want, out, exit)
			}
		}
		s := b.spec("may", "touch /home/agent/f && cat /home/agent/f && echo ok > /tmp/x && echo ok > /dev/null && echo ok > /dev/shm/x && cat /tmp/x /dev/shm/x")
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: home, Target: "/home/agent", Writable: true})
		if out, exit := b.run(s); exit.Code != 0 || out != "ok\nok\n" {
			t.Errorf("what a cell may do: %v %q", exit, out)
		}
	})
}

func TestLimitsBite(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		s := b.spec("oom", "busybox dd if=/dev/zero of=/tmp/big bs=1M count=200; echo survived")
		s.Mounts[0].Size = 512 << 20
		s.Limits.MemoryBytes = 64 << 20
		out, exit := b.run(s)
		if strings.Contains(out, "200+0 records out") || !exit.OOM {
			t.Errorf("memory: %v %q", exit, out)
		}
		s = b.spec("pids", "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; echo all")
		s.Limits.PIDs = 40
		if out, exit = b.run(s); !strings.Contains(out, "can't fork") {
			t.Errorf("pids: %v %q", exit, out)
		}
		g, err := b.groups.Create("t/a/cpu", cgroup.Limits{MilliCPU: 250, MemoryBytes: 1 << 20, PIDs: 7})
		if err != nil {
			t.Fatal(err)
		}
		if l, err := g.Limits(); err != nil || l != (cgroup.Limits{MilliCPU: 250, MemoryBytes: 1 << 20, PIDs: 7}) {
			t.Errorf("limits read back %+v, %v", l, err)
		}
	})
}

func TestLinkInTheHomeRedirectsNothing(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		home := "/var/lib/bulkhead/agents/home"
		if err := os.MkdirAll(home, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(home, int(host(1000)), int(host(1000))); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/etc", filepath.Join(home, "work")); err != nil {
			t.Fatal(err)
		}
		fails := func(what string, s engine.Spec, want string) {
			t.Helper()
			p, err := cell.Start(s, cell.Options{Cgroups: b.groups})
			if err == nil {
				_ = p.Kill()
				_ = p.Close()
				t.Errorf("%s: it started", what)
			} else if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		s := b.spec("link", "true")
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: home, Target: "/home/agent"},
			engine.Mount{Kind: engine.MountTmpfs, Target: "/home/agent/work", Size: 1 << 20})
		fails("target below a planted link", s, "/home/agent/work")
		s = b.spec("link2", "true")
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: home + "/work", Target: "/work"})
		fails("source below the agent's folder", s, "belongs to user")
		s = b.spec("missing", "true")
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountTmpfs, Target: "/nowhere", Size: 1 << 20})
		fails("missing mount point", s, "no mount point /nowhere")
		for want, change := range map[string]func(*engine.Spec){
			"is for engine": func(s *engine.Spec) { s.Engine = engine.Podman }, "uses none": func(s *engine.Spec) { s.OCIRuntime = "crun" },
		} {
			s = b.spec("other", "true")
			change(&s)
			fails("a container of another engine", s, want)
		}
		s = b.spec("off", "true")
		s.Off = []engine.Mechanism{engine.MechSeccomp}
		fails("a mechanism off in what is no decoy", s, "only a decoy")
	})
}

func TestEachMechanismCanBeSwitchedOffInADecoy(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		for _, c := range []struct {
			off    engine.Mechanism
			script string
			want   string
		}{
			{engine.MechSeccomp, "grep Seccomp: /proc/self/status", "Seccomp:\t0"},
			{engine.MechNoNewPrivs, "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t0"},
			{engine.MechCaps, "grep CapEff /proc/self/status", "CapEff:\t000001ff"},
			{engine.MechUserNS, "cat /proc/self/uid_map", "4294967295"},
			{engine.MechPIDNS, "ls /proc/ | grep -c '^[0-9]'; echo pid $$; ls -d /proc/1/", "/proc/1/"},
			{engine.MechNetNS, "ip a", "203.0.113"},
			{engine.MechMountNS, "ls /var/lib/bulkhead", "programs"},
			{engine.MechReadOnly, "grep ' / ' /proc/self/mountinfo", "/ rw,nosuid,nodev"},
			{engine.MechLandlock, "echo x", "x"},
		} {
			t.Run(string(c.off), func(t *testing.T) {
				s := b.spec("off-"+string(c.off), c.script)
				s.Decoy, s.Off = true, []engine.Mechanism{c.off}
				out, exit := b.run(s)
				if !strings.Contains(out, c.want) {
					t.Errorf("off: %v, want %q in %q", exit, c.want, out)
				}
			})
		}
	})
}

func TestDialerStaysInTheHostsNetworkUnderItsOwnID(t *testing.T) {
	inHost(t, func(t *testing.T, b *bench) {
		s := b.spec("dialer", "")
		s.Role, s.Network.Host, s.Mounts = engine.RoleDialer, true, nil
		s.User = engine.User{ID: 700001}
		s.Command = []string{"/bin/sh", "-c", "id; grep -E 'Cap|Seccomp:|NoNew' /proc/self/status; cat /sys/class/net/lo/address; cat /proc/net/dev; echo slack $(cat /proc/self/timerslack_ns)"}
		out, exit := b.run(s)
		if exit.Code != 0 || !strings.Contains(out, "uid=700001 gid=700001\n") || !strings.Contains(out, "CapBnd:\t0000000000000000") || !strings.Contains(out, "slack 1000000\n") {
			t.Errorf("%v %s", exit, out)
		}
	})
}
