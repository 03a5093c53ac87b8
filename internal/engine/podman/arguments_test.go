package podman

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/layout"
	"bulkhead/internal/reap"
)

const base = 200000

func gateway() engine.Spec {
	ids := layout.IDs{Account: 5000, Base: base}
	return engine.Spec{
		Version: engine.SpecVersion, Team: "t", Agent: "a", Name: "gateway", Role: engine.RoleGateway, Engine: engine.Podman,
		User: engine.User{ID: layout.GatewayID, Map: []engine.IDMap{
			{Inside: layout.RuntimeID, Host: ids.Runtime()}, {Inside: layout.GatewayID, Host: ids.Gateway()}, {Inside: layout.EngineID, Host: ids.Engine()},
		}},
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 1 << 20, Mode: 0o1777},
			{Kind: engine.MountBind, Source: "/srv/programs", Target: "/.bulkhead", Exec: true},
		},
		Init: []string{"/.bulkhead/bulkhead-shim", "init"}, Command: []string{"/x"}, Env: []string{"SECRET=1"}, Dir: "/", Hostname: "a", Cgroup: "t/a/gateway",
	}
}

func options() Options {
	return Options{
		Options: cell.Options{Cgroups: &cgroup.Tree{}, Shim: &engine.ShimConfig{}},
		Account: 5000, Conf: "/conf", Root: "/.container", Orphans: &reap.Orphans{},
	}
}

// pair says whether two words follow each other.
func pair(argv []string, flag, value string) bool {
	for i := range argv[:len(argv)-1] {
		if argv[i] == flag && argv[i+1] == value {
			return true
		}
	}
	return false
}

func TestArgumentsRefuseWhatPodmanWouldAdd(t *testing.T) {
	s := gateway()
	argv := arguments(&s, "crun", "/.container", "/conf", "/shim")
	for _, want := range [][2]string{
		{"--cap-drop", "ALL"},
		{"--security-opt", "no-new-privileges"},
		{"--security-opt", "mask=" + strings.Join(cell.Masked(), ":")},
		{"--security-opt", "seccomp=/conf/seccomp-gateway.json"},
		{"--pull", "never"},
		{"--image-volume", "ignore"},
		{"--user", "2000:2000"},
		{"--ulimit", "core=0:0"},
		{"--ulimit", "nofile=1024:1024"},
		{"--uidmap", "0:0:1"},
		{"--uidmap", "2000:2000:1"},
		{"--gidmap", "1000:1000:1"},
		{"--cgroups", "disabled"},
		{"--rootfs", "/.container"},
		{"--log-driver", "none"},
		{"--dns", "none"},
		{"--hostname", "a"},
		{"--preserve-fds", "2"},
		{"--cgroupns", "private"},
		{"--ipc", "none"},
	} {
		if !pair(argv, want[0], want[1]) {
			t.Errorf("missing %s %s in %q", want[0], want[1], argv)
		}
	}
	for _, want := range []string{"--read-only", "--read-only-tmpfs=false", "--no-healthcheck", "--unsetenv-all", "--no-hosts", "--passwd=false"} {
		if !slices.Contains(argv, want) {
			t.Errorf("missing %s", want)
		}
	}
	if all := strings.Join(argv, " "); strings.Contains(all, "SECRET") || strings.Contains(all, " -v ") || strings.Contains(all, "--volume") {
		t.Errorf("environment or mounts are in Podman's command line, which everybody may read: %s", all)
	}
	if pair(arguments(&s, "runc", "/.container", "/conf", "/shim"), "--cgroups", "disabled") {
		t.Error("runc does not know --cgroups disabled")
	}
}

func TestOnlyTheIDsOfTheSpecExistForPodman(t *testing.T) {
	s := gateway()
	ids := layout.IDs{Account: 5000, Base: base}
	want := []syscall.SysProcIDMap{
		{ContainerID: 0, HostID: int(ids.Engine()), Size: 1},
		{ContainerID: layout.RuntimeID, HostID: int(ids.Runtime()), Size: 1},
		{ContainerID: layout.GatewayID, HostID: int(ids.Gateway()), Size: 1},
	}
	if got := outer(&s); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v: the account itself must not be among them", got, want)
	}
	if got := runs(&s); got != strconv.Itoa(int(ids.Engine())) {
		t.Errorf("Podman runs as %s", got)
	}
}

// Podman 5 mounts the root once more when its own user is not mapped inside,
// which the kernel refuses (docs/decisions/0075-podman-5.md).
func TestPodmanFindsItselfMappedInTheContainer(t *testing.T) {
	s := gateway()
	want := []engine.IDMap{{Inside: 0, Host: 0}, {Inside: layout.RuntimeID, Host: layout.RuntimeID}, {Inside: layout.GatewayID, Host: layout.GatewayID}}
	if got := inner(&s); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestCheckRefusesWhatThisEngineCannotKeep(t *testing.T) {
	s, opt := gateway(), options()
	if err := Check(&s, &opt); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*engine.Spec, *Options){
		"is not podman":                      func(s *engine.Spec, _ *Options) { s.Engine = engine.Cell },
		"only a runtime and a gateway":       func(s *engine.Spec, _ *Options) { s.Role = engine.RoleRun },
		"decoys":                             func(s *engine.Spec, _ *Options) { s.Decoy = true },
		"without an init":                    func(_ *engine.Spec, o *Options) { o.Shim = nil },
		"OCI runtime \"krun\"":               func(s *engine.Spec, _ *Options) { s.OCIRuntime = "krun" },
		"only a runtime runs under runsc":    func(s *engine.Spec, _ *Options) { s.OCIRuntime = "runsc" },
		"lacks 5000":                         func(s *engine.Spec, _ *Options) { s.User.Map = s.User.Map[:2] },
		"does not follow one range":          func(s *engine.Spec, _ *Options) { s.User.Map[0].Host = 5000 },
		"an option is missing":               func(_ *engine.Spec, o *Options) { o.Orphans = nil },
		"user id 0: no container runs as ro": func(s *engine.Spec, _ *Options) { s.User.ID = 0 },
	} {
		s, opt := gateway(), options()
		s.User.Map = slices.Clone(s.User.Map)
		change(&s, &opt)
		if err := Check(&s, &opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestInstalledNamesARuntimeThatTakesNoDescriptors(t *testing.T) {
	if err := Installed("krun"); err == nil || !strings.Contains(err.Error(), "kernel of its own") {
		t.Errorf("%v", err)
	}
}

func TestRuncIsRefusedWhereItWouldMakeCgroups(t *testing.T) {
	if got, err := ociRuntime("runc", true); err == nil {
		t.Errorf("%s", got)
	}
	for _, named := range []string{"crun", "runc"} {
		if got, err := ociRuntime(named, false); err != nil || got != named {
			t.Errorf("%s, %v", got, err)
		}
	}
}

func TestFilesAreComplete(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{containersConf, storageConf, "seccomp-runtime.json", "seccomp-gateway.json"} {
		if files[name] == "" {
			t.Errorf("%s is missing", name)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(files[name])) {
			t.Errorf("%s is no JSON", name)
		}
	}
}
