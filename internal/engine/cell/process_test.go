package cell

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/prove/threads"
)

func TestIdentityHoldsForOneProcessOnly(t *testing.T) {
	id, err := Identify("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := Same("/proc", id); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Identity){
		"start time": func(i *Identity) { i.Start++ },
		"user":       func(i *Identity) { i.UID++ },
		"cgroup":     func(i *Identity) { i.Cgroup = "/bulkhead/none" },
		"process":    func(i *Identity) { i.PID = 1 << 22 },
	} {
		other := id
		change(&other)
		if err := Same("/proc", other); err == nil {
			t.Errorf("another %s passes for the same process", name)
		}
	}
}

// prove stops threads of the warden's own children, and runs in the warden: for
// whoever waits for their end, a stop must be no news.
func TestAStopOfATracedChildIsNoEnd(t *testing.T) {
	var pidfd int
	proc, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &pidfd}})
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{pid: proc.Pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{})}
	go p.reap(proc, 0)
	for range 200 {
		list, err := threads.Of(p.pid)
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		select {
		case <-p.Done():
			t.Fatalf("a child that was stopped counts as ended: %v, %v", p.exit, p.err)
		default:
		}
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil || exit.Code != 128+9 {
		t.Errorf("%v, %v", exit, err)
	}
	if _, err := threads.Of(p.pid); !errors.Is(err, threads.ErrGone) {
		t.Errorf("of one that has ended: %v", err)
	}
}

func TestGroupIsComparedAsAWholePath(t *testing.T) {
	text := "9:name=systemd:/\n8:pids:/bulkhead/pair/writer/runtime\n0::/\n"
	for path, want := range map[string]bool{"/bulkhead/pair/writer/runtime": true, "/pair/writer/runtime": false, "/bulkhead/pair/writer": false, "/": true} {
		if inGroup(text, path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

func FuzzParseStartTime(f *testing.F) {
	f.Add("1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2")
	f.Add("1 (x")
	f.Add(") ")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseStartTime(text); err == nil && n == 0 && !strings.Contains(text, "0") {
			t.Errorf("%q gives 0", text)
		}
	})
}

// TestEverySpecThatCannotBeKeptIsRefused changes one thing at a time.
func TestEverySpecThatCannotBeKeptIsRefused(t *testing.T) {
	good := func() engine.Spec {
		return engine.Spec{
			Version: engine.SpecVersion, Team: "t", Agent: "a", Name: "n", Role: engine.RoleRun, Command: []string{"/x"}, Dir: "/",
			User:   engine.User{ID: 1000, Map: []engine.IDMap{{Inside: 1000, Host: 200999}}},
			Mounts: []engine.Mount{{Kind: engine.MountTmpfs, Target: "/tmp", Size: 1}},
		}
	}
	s := good()
	if err := Check(&s); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*engine.Spec)
		want   string
	}{
		"version":                  {func(s *engine.Spec) { s.Version = 99 }, "version 99"},
		"role":                     {func(s *engine.Spec) { s.Role = "root" }, `role "root"`},
		"off without decoy":        {func(s *engine.Spec) { s.Off = []engine.Mechanism{engine.MechCaps} }, "only a decoy"},
		"unknown mechanism":        {func(s *engine.Spec) { s.Decoy, s.Off = true, []engine.Mechanism{"x"} }, `mechanism "x"`},
		"no command":               {func(s *engine.Spec) { s.Command = nil }, "no command"},
		"relative folder":          {func(s *engine.Spec) { s.Dir = "x" }, "not absolute"},
		"root":                     {func(s *engine.Spec) { s.User.ID = 0 }, "user id 0"},
		"root in the map":          {func(s *engine.Spec) { s.User.Map = append(s.User.Map, engine.IDMap{Inside: 0, Host: 1}) }, "contains 0"},
		"the host's root":          {func(s *engine.Spec) { s.User.Map[0].Host = 0 }, "contains 0"},
		"no map":                   {func(s *engine.Spec) { s.User.Map = nil }, "needs a user id map"},
		"map twice":                {func(s *engine.Spec) { s.User.Map = append(s.User.Map, s.User.Map[0]) }, "twice"},
		"user not in map":          {func(s *engine.Spec) { s.User.ID = 7 }, "not in the user id map"},
		"dialer with map":          {func(s *engine.Spec) { s.Role = engine.RoleDialer }, "takes no user id map"},
		"host network":             {func(s *engine.Spec) { s.Network.Host = true }, "only dialer and resolver"},
		"target root":              {func(s *engine.Spec) { s.Mounts[0].Target = "/" }, "mount target"},
		"target with dots":         {func(s *engine.Spec) { s.Mounts[0].Target = "/a/../b" }, "mount target"},
		"target in proc":           {func(s *engine.Spec) { s.Mounts[0].Target = "/proc/sys" }, "made by the engine"},
		"target dev":               {func(s *engine.Spec) { s.Mounts[0].Target = "/dev" }, "made by the engine"},
		"tmpfs without a size":     {func(s *engine.Spec) { s.Mounts[0].Size = 0 }, "needs a size"},
		"tmpfs with a source":      {func(s *engine.Spec) { s.Mounts[0].Source = "/x" }, "takes no source"},
		"setuid mode":              {func(s *engine.Spec) { s.Mounts[0].Mode = 0o4755 }, "bits that nobody needs"},
		"bind without a source":    {func(s *engine.Spec) { s.Mounts[0] = engine.Mount{Kind: engine.MountBind, Target: "/x"} }, "needs a source"},
		"mount of an unknown kind": {func(s *engine.Spec) { s.Mounts[0].Kind = "overlay" }, `kind "overlay"`},
	} {
		s := good()
		c.change(&s)
		if err := Check(&s); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
