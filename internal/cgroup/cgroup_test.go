package cgroup

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/thread"
	"bulkhead/test/system/throwaway"
)

func TestPathsCannotLeaveTheRootFolderOrMeetTheKernelsFiles(t *testing.T) {
	tree := &Tree{name: "x"}
	for path, ok := range map[string]bool{
		"pair/writer/runtime": true, "a": true, "run-7f3a": true, "a.b": true, "": true,
		"..": false, "a/../b": false, "/a": false, "a//b": false, "a/": false, "cgroup.procs": false, "a/memory.max": false, "pids.x": false,
		".hidden": false, "a b": false, "a\nb": false, "-a": false, strings.Repeat("a", 129): false,
	} {
		if _, err := tree.Group(path); (err == nil) != ok {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, name := range []string{"", "a/../b", "/a", "..", "cgroup.procs", "a/cgroup.procs"} {
		if _, err := Open(name); err == nil {
			t.Errorf("root folder %q was taken", name)
		}
	}
}

func TestHierarchiesAreFoundInEveryArrangement(t *testing.T) {
	hybrid := "1 2 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"2 2 0:2 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n3 2 0:3 / /odd\\040name rw - cgroup cgroup rw,pids\n" +
		"4 2 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n5 2 0:5 / /later rw - cgroup cgroup rw,memory\n"
	v2, v1 := Mounts(hybrid)
	if v2 != "/sys/fs/cgroup/unified" || v1["cpu"] != "/sys/fs/cgroup/cpu,cpuacct" || v1["memory"] != "/sys/fs/cgroup/memory" || v1["pids"] != "/odd name" {
		t.Errorf("%q %v", v2, v1)
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add("4 2 0:4 / /x\\040y rw - cgroup2 cgroup2 rw\n")
	f.Add("1 2 0:1 / /a\\ rw - cgroup a rw,cpu\n - - \n")
	f.Fuzz(func(t *testing.T, text string) {
		v2, v1 := Mounts(text)
		if len(v1) > len(controllers) || len(v2) > len(text) {
			t.Errorf("%q %v", v2, v1)
		}
	})
}

func TestKillEndsEverythingAndRemoveLeavesNothing(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		tree, err := Open("bulkhead-test-cgroup")
		if err != nil {
			t.Fatal(err)
		}
		want := Limits{MemoryBytes: 32 << 20, MilliCPU: 500, PIDs: 20}
		g, err := tree.Create("t/a/x", want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := g.Limits(); err != nil || got != want {
			t.Errorf("limits %+v, %v", got, err)
		}
		// Raised and lowered again: version 1 wants another order for each.
		for _, l := range []Limits{{256 << 20, 2000, 100}, {16 << 20, 100, 5}} {
			if _, err := tree.Create("t/a/x", l); err != nil {
				t.Fatal(err)
			}
			if got, err := g.Limits(); err != nil || got != l {
				t.Errorf("limits %+v, %v, want %+v", got, err, l)
			}
		}
		// A process that forks as fast as it can.
		cmd := exec.Command("sh", "-c", `d=$(printf %s "$0"); for f in $d; do echo $$ > $f/cgroup.procs; done; echo in; while :; do sleep 1000 & done`, strings.Join(g.folders(), " "))
		cmd.WaitDelay = time.Second
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		if err := g.Kill(10 * time.Second); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if procs, err := g.Procs(); err != nil || len(procs) != 0 {
			t.Errorf("left: %v, %v", procs, err)
		}
		root, err := tree.Group("")
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Remove(); err != nil {
			t.Error(err)
		}
		if root.Exists() || g.Exists() {
			t.Error("groups are left")
		}
		if err := root.Remove(); err != nil {
			t.Errorf("removing what is gone: %v", err)
		}
	})
}

// A thread that joined the group to fork into it is still there for a moment
// after its goroutine has ended, one that keeps a place ready for long; the
// process that it belongs to must go on.
func TestAProcessThatOnlyHasAThreadThereIsSpared(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		tree, err := Open("bulkhead-test-cgroup")
		if err != nil {
			t.Fatal(err)
		}
		if tree.Unified() {
			t.Skip("expected: version 1 only, on version 2 no thread joins")
		}
		g, err := tree.Create("t/a/x", Limits{PIDs: 20})
		if err != nil {
			t.Fatal(err)
		}
		joined, leave := make(chan error), make(chan struct{})
		go thread.Run(func() {
			joined <- g.JoinThread()
			<-leave
		})
		if err := <-joined; err != nil {
			t.Fatal(err)
		}
		if procs, err := g.Procs(); err != nil || !slices.Contains(procs, os.Getpid()) {
			t.Fatalf("the thread is not there: %v, %v", procs, err)
		}
		// Stopping or killing would end this test here.
		if err := g.Freeze(10 * time.Second); err != nil {
			t.Error(err)
		}
		if err := g.Thaw(); err != nil {
			t.Error(err)
		}
		if err := g.Kill(50 * time.Millisecond); err == nil {
			t.Error("a group with a thread in it is said to be empty")
		}
		close(leave)
		if err := g.Kill(10 * time.Second); err != nil {
			t.Error(err)
		}
		root, err := tree.Group("")
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Remove(); err != nil {
			t.Error(err)
		}
	})
}
