package evidence

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/layout"
	"bulkhead/test/system/throwaway"
)

// cells is a Host whose agents are real cells without a shim: each probe is
// the first process of a container with the position's whole profile.
type cells struct {
	dir    string // programs
	root   string // file system of every container
	agents []Agent
	cells  map[string]*launcher.Client
	broken []engine.Mechanism // switched off on purpose
}

func (h *cells) Probe(ctx context.Context, agent string, from Position, request []byte) ([]byte, error) {
	i := slices.IndexFunc(h.agents, func(a Agent) bool { return a.Name == agent })
	a := h.agents[i]
	role, inside := engine.RoleRuntime, uint32(layout.RuntimeID)
	switch from {
	case FromGateway:
		role, inside = engine.RoleGateway, layout.GatewayID
	case FromAccount:
		return h.asAccount(ctx, a, request)
	}
	return runCell(ctx, engine.Spec{
		Version: engine.SpecVersion, Team: "pair", Agent: agent, Name: "probe", Role: role, Root: engine.Root{Path: h.root},
		Mounts: []engine.Mount{
			{Kind: engine.MountBind, Source: h.dir, Target: h.dir, Exec: true},
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 1 << 20, Mode: 0o1777},
		},
		User:    engine.User{ID: inside, Map: []engine.IDMap{{Inside: inside, Host: a.IDs.Host(inside)}}},
		Command: []string{filepath.Join(h.dir, "bulkhead-probe")}, Dir: "/", Hostname: agent,
		Off: h.broken, Decoy: len(h.broken) > 0,
	}, cell.Options{}, request, nil)
}

// asAccount runs the probe as the bare account, in the account cell that the
// agent's real launcher made.
func (h *cells) asAccount(ctx context.Context, a Agent, request []byte) ([]byte, error) {
	var inside, outside []*os.File
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		defer w.Close()
		if i == 0 {
			r, w = w, r
		}
		inside, outside = append(inside, w), append(outside, r)
	}
	name := "probe-" + strings.ToLower(rand.Text()[:10])
	c, err := h.cells[a.Name].Launch(ctx, launcher.LaunchRequest{Stdio: true, Spec: engine.Spec{
		Version: engine.SpecVersion, Team: "pair", Agent: a.Name, Name: name, Role: engine.RoleAccount, User: engine.User{ID: a.IDs.Account},
		Command: []string{filepath.Join(h.dir, "bulkhead-probe")}, Env: []string{}, Dir: "/", Cgroup: "pair/" + a.Name + "/" + name,
	}}, inside...)
	if err != nil {
		return nil, err
	}
	_ = c.PIDFD.Close()
	for _, f := range inside {
		_ = f.Close()
	}
	_, err = outside[0].Write(request)
	if err = errors.Join(err, outside[0].Close()); err != nil {
		return nil, err
	}
	return io.ReadAll(outside[1])
}

// liveTeam makes two agents with files, a socket and a process each.
func liveTeam(t *testing.T, dir string) *cells {
	t.Helper()
	h := &cells{dir: dir, root: "/var/lib/bulkhead/root", cells: map[string]*launcher.Client{}}
	for _, d := range []string{"etc", "tmp", "proc", "dev", "sys", dir} {
		must(t, os.MkdirAll(filepath.Join(h.root, d), 0o755))
	}
	for i, name := range []string{"writer", "editor"} {
		base := uint32(900_000_000 + i*2*layout.RangeSize)
		a := Agent{Name: name, Place: layout.Default().Agent("pair", name), IDs: layout.IDs{Account: base, Dialer: base + 1, Base: base + layout.RangeSize}}
		must(t, os.MkdirAll(a.Place.Home(), 0o755))
		must(t, os.Chmod(a.Place.Home(), 0o700))
		must(t, os.Chown(a.Place.Home(), int(a.IDs.Runtime()), int(a.IDs.Runtime())))
		l, err := listenFor(a.Place.GatewaySocket(), a.IDs.Runtime())
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		c := exec.CommandContext(t.Context(), filepath.Join(dir, "bulkhead-probe"), "child")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.IDs.Runtime(), Gid: a.IDs.Runtime()}}
		c.Dir = "/"
		in, err := c.StdinPipe()
		must(t, err)
		must(t, c.Start())
		t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
		a.PIDs, a.TokenFile, a.ReadOnly = []int{c.Process.Pid}, "/run/bulkhead-token", []string{dir}
		h.agents = append(h.agents, a)
		for dir, mode := range map[string]os.FileMode{a.Place.Control(): 0o700, a.Place.Logs(): 0o700, a.Place.Conf(): 0o755, a.Place.Data(): 0o700, layout.Default().Images(): 0o755} {
			must(t, os.MkdirAll(dir, mode))
		}
		must(t, os.Chown(a.Place.Data(), int(a.IDs.Gateway()), int(a.IDs.Gateway())))
		of, err := launcher.MeansFor(cgroup.RootName)
		must(t, err)
		t.Cleanup(func() { _ = of.Bare.Close() })
		cell, err := launcher.Start(t.Context(), launcher.Config{
			Host: layout.Default(), Place: a.Place, Account: a.IDs.Account, Programs: dir, Build: "test", CgroupRoot: cgroup.RootName,
		}, of)
		must(t, err)
		h.cells[name] = cell
		t.Cleanup(func() { _ = cell.Shutdown(context.Background()) })
	}
	l, err := listenFor(layout.Default().WardenSocket(), 0)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// withoutDialer are the attacks that need neither gateway nor adapter.
func withoutDialer() []Attack {
	var out []Attack
	for _, a := range Attacks() {
		if strings.HasPrefix(a.ID, "dialer.") || strings.HasPrefix(a.ID, "proxy.") || strings.HasPrefix(a.ID, "message.") || strings.HasPrefix(a.Attempt, "gateway.") || a.ID == "process.init" {
			continue
		}
		out = append(out, a)
	}
	return out
}

// lacking says whether this kernel has no means for an attack at all, as one
// without IA32 emulation has none for kernel.i386.
func lacking(r *Report, id string) (why string, lacks bool) {
	for _, row := range r.Rows {
		if row.Attack != id {
			continue
		}
		if row.Verdict != NotRun {
			return "", false
		}
		why, lacks = row.Evidence, true
	}
	return why, lacks
}

func TestRealContainersWithstandEveryAttackAndABrokenProfileDoesNot(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and a throwaway host")
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		h := liveTeam(t, programs(t))
		for _, tc := range []struct {
			name   string
			broken []engine.Mechanism
			falls  []string // attacks that must be seen to succeed
		}{
			{"whole", nil, nil},
			{"without seccomp", off(seccomp), []string{"net.vsock", "net.vsock_high", "kernel.unshare", "kernel.keyctl", "kernel.i386", "process.child"}},
			{"without a network of its own", off(netNS, landlock), []string{"net.loopback", "net.abstract"}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				h.broken = tc.broken
				r, err := Run(t.Context(), h, Request{Team: "pair", Agents: h.agents, Attacks: withoutDialer()})
				must(t, err)
				want := 0
				if len(tc.falls) > 0 {
					want = 1
				}
				if r.ExitCode() != want {
					t.Errorf("exit %d, want %d:\n%s", r.ExitCode(), want, r.Text())
				}
				for _, id := range tc.falls {
					if why, lacks := lacking(r, id); lacks {
						t.Logf("%s: %s", id, why)
						continue
					}
					if !slices.ContainsFunc(r.Rows, func(x Row) bool { return x.Attack == id && x.Verdict == Succeeded }) {
						t.Errorf("%s is not reported as succeeded", id)
					}
				}
				for _, row := range r.Rows {
					if row.Verdict == Succeeded && !slices.Contains(tc.falls, row.Attack) && len(tc.falls) == 0 {
						t.Errorf("%+v", row)
					}
				}
				t.Logf("%d rows: %d denied, %d succeeded, %d unproven", r.Attacks, r.Denied, r.Succeeded, r.Unproven)
			})
		}
	})
}
