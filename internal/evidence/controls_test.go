package evidence

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/test/system/throwaway"
)

// programs builds what decoys need, in a throwaway host.
func programs(t *testing.T) string {
	t.Helper()
	throwaway.RequireInside(t)
	dir := "/var/lib/bulkhead/programs/test"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"bulkhead-probe", "bulkhead-shim", "bulkhead-net", "bulkhead-serve"} {
		if _, err := os.Stat(filepath.Join("../../cmd", p)); err != nil {
			t.Logf("%s is not there yet", p)
			continue
		}
		c := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", dir, "./cmd/"+p)
		c.Dir, c.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", p, err, out)
		}
	}
	return dir
}

// TestEveryControlBites is the whole set: for each attack and each mechanism
// that refuses it, denied with it and successful without it.
func TestEveryControlBites(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and a throwaway host")
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		d := &DecoyHost{Programs: programs(t), FirstID: 900_000_000, Scratch: "/run/bulkhead/decoy", CgroupRoot: cgroup.RootName}
		rows, err := d.Controls(t.Context(), Attacks())
		if err != nil {
			t.Fatal(err)
		}
		bit := 0
		for _, r := range rows {
			switch {
			case r.NotRun != "":
				t.Logf("not run: %s %s: %s", r.Attack, r.Mechanism, r.NotRun)
			case r.Bit:
				bit++
				t.Logf("bit: %s %s: with it: %s; without: %s", r.Attack, r.Mechanism, r.On, r.Without)
			default:
				t.Errorf("%s by %s (off %v) did not bite:\n  with it: %s\n  without: %s", r.Attack, r.Mechanism, r.Off, r.On, r.Without)
			}
		}
		if bit < 40 {
			t.Errorf("only %d controls bit", bit)
		}
		if tree, err := cgroup.Open(cgroup.RootName); err != nil {
			t.Error(err)
		} else if g, err := tree.Group(DecoyCgroup); err != nil || g.Exists() {
			t.Errorf("the decoys' cgroup is left (%v)", err)
		}
		left, err := os.ReadDir(d.Scratch)
		if err != nil || len(left) > 0 {
			t.Errorf("the decoy host left %v (%v) in %s", left, err, d.Scratch)
		}
		if out, err := exec.CommandContext(t.Context(), "nft", "list", "tables").Output(); err != nil || strings.TrimSpace(string(out)) != "" {
			t.Errorf("the decoys' rules are on the host: %s %v", out, err)
		}
	})
}

// TestWhoTakesTooMuchIsHeldAndItsNeighbourIsNot is the part of the library that
// takes more than its share.
func TestWhoTakesTooMuchIsHeldAndItsNeighbourIsNot(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and a throwaway host")
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		d := &DecoyHost{Programs: programs(t), FirstID: 900_000_000, Scratch: "/run/bulkhead/decoy", CgroupRoot: cgroup.RootName}
		rows, err := d.Exhaustion(t.Context())
		must(t, err)
		if len(rows) != len(Exhaustion()) {
			t.Errorf("%d rows for %d attacks", len(rows), len(Exhaustion()))
		}
		for _, r := range rows {
			if !r.Bit {
				t.Errorf("%s by %s did not bite (%s):\n  with it: %s\n  without: %s\n  neighbour: %s", r.Attack, r.Mechanism, r.NotRun, r.On, r.Without, r.Beside)
			}
			t.Logf("%s by %s: with it: %s; without: %s; its neighbour alone: %s; beside it: %s", r.Attack, r.Mechanism, r.On, r.Without, r.Alone, r.Beside)
		}
		left, err := os.ReadDir(d.Scratch)
		if err != nil || len(left) > 0 {
			t.Errorf("the decoy host left %v (%v) in %s", left, err, d.Scratch)
		}
	})
}

// decoyHosts lists the processes that are decoy hosts.
func decoyHosts(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var out []string
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil && strings.Contains(string(raw), "\x00"+DecoyArg+"\x00") {
			out = append(out, f)
		}
	}
	return out
}

func TestAKilledStarterTakesItsDecoysAlong(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and a throwaway host")
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		dir := programs(t)
		tree, err := cgroup.Open(cgroup.RootName)
		must(t, err)
		group, err := tree.Group(DecoyCgroup)
		must(t, err)
		c := exec.CommandContext(t.Context(), "/proc/self/exe", starterArg, dir)
		must(t, c.Start())
		patience, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for !group.Exists() { // decoys are being started
			if patience.Err() != nil {
				t.Fatal("no decoy came up")
			}
			time.Sleep(time.Millisecond)
		}
		if len(decoyHosts(t)) == 0 {
			t.Fatal("there are decoys but no decoy host: this test looks in the wrong place")
		}
		must(t, c.Process.Kill())
		_ = c.Wait()
		for len(decoyHosts(t)) > 0 {
			if patience.Err() != nil {
				t.Fatal("the decoy host outlives its starter")
			}
			time.Sleep(time.Millisecond)
		}
		d := &DecoyHost{Scratch: "/run/bulkhead/decoy", CgroupRoot: cgroup.RootName}
		must(t, d.Sweep(t.Context()))
		if group.Exists() {
			t.Error("the cgroup of decoys is left after Sweep")
		}
	})
}
