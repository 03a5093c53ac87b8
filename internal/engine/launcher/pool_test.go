package launcher_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine/launcher"
)

// oneOff runs a script with descriptors of the test's own.
func oneOff(ctx context.Context, t *testing.T, c *launcher.Client, cfg launcher.Config, name, script string) (launcher.Container, string, int) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = null.Close(), r.Close() }()
	got, err := c.Launch(ctx, launcher.LaunchRequest{Spec: spec(cfg, name, script), Stdio: true}, null, w, w)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	_ = got.PIDFD.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	exit, err := c.Wait(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return got, string(out), exit.Code
}

func TestPreparedContainersAreLikeFreshOnes(t *testing.T) {
	for name, ready := range map[string]int{"processes": 0, "seats": -1} {
		t.Run(name, func(t *testing.T) {
			inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
				cfg.Ready = ready
				c := start(ctx, t, cfg)
				pooled := 0
				for i := range 12 {
					id := fmt.Sprintf("run-%d", i)
					got, out, code := oneOff(ctx, t, c, cfg, id, fmt.Sprintf("echo %s; grep -E 'Seccomp:|NoNew|CapBnd' /proc/self/status; ls /proc/self/fd | wc -l; echo $$; exit %d", id, i))
					want := id + "\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n4\n1\n"
					if out != want || code != i {
						t.Errorf("%s: exit %d, printed %q, want %q", id, code, out, want)
					}
					if got.Report.Seccomp == 0 || got.Report.Landlock < 6 {
						t.Errorf("%s: report %+v", id, got.Report)
					}
					if strings.HasPrefix(got.Spec.Cgroup, "t/a/ready-") {
						pooled++
					}
					if i == 0 {
						awaitReady(t)
					}
				}
				if pooled == 0 {
					t.Error("no run came from the pool")
				}
				null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = null.Close() }()
				s := spec(cfg, "bad", "")
				s.Command = []string{"/bin/nonsense"}
				awaitReady(t)
				if _, err := c.Launch(ctx, launcher.LaunchRequest{Spec: s, Stdio: true}, null, null, null); err == nil || !strings.Contains(err.Error(), "nonsense") {
					t.Errorf("a missing program: %v", err)
				}
				if err := c.Shutdown(ctx); err != nil {
					t.Error(err)
				}
				_ = c.Close()
				if left := readyGroups(t); len(left) > 0 {
					t.Errorf("cgroups are left: %v", left)
				}
			})
		})
	}
}

func readyGroups(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/pids/" + groups + "/t/a/ready-*", "/sys/fs/cgroup/" + groups + "/t/a/ready-*"} {
		got, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got...)
	}
	return all
}

// awaitReady waits until something is in the pool.
func awaitReady(t *testing.T) {
	t.Helper()
	await(t, "a prepared container", func() bool { return len(readyGroups(t)) > 0 })
}

// A pool that is told to rest gives up what is ready, and what a refill that is
// under way makes; the next run is made fresh and fills it again.
func TestAPoolThatRestsKeepsNothingReady(t *testing.T) {
	inHost(t, func(ctx context.Context, t *testing.T, cfg launcher.Config) {
		c := start(ctx, t, cfg)
		for i := range 3 {
			if _, out, code := oneOff(ctx, t, c, cfg, fmt.Sprintf("run-%d", i), "echo here"); out != "here\n" || code != 0 {
				t.Fatalf("exit %d, %q", code, out)
			}
			if i > 0 {
				awaitReady(t) // the first time it rests while it is filled
			}
			if err := c.Rest(ctx); err != nil {
				t.Fatal(err)
			}
			await(t, "nothing is ready", func() bool { return len(readyGroups(t)) == 0 })
		}
	})
}
