package warden

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/dial"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/podman"
	"bulkhead/internal/host"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// Places inside containers.
const (
	insideHome      = "/home/agent"
	insideWorkspace = "/workspace"
	insideGateway   = "/run/bulkhead"       // folder of gateway.sock, in the runtime
	insideDialer    = "/run/dialer"         // folder of dialer.sock, in the gateway
	insideData      = "/data"               // the gateway's own data, or the adapter's
	insideAdapter   = "/run/adapter"        // folder of adapter.sock, in the gateway
	insideToken     = "/run/bulkhead-token" // what the runtime's own tools show to its gateway
	insideService   = "/run/"               // and a server's name: folder of its socket, in the gateway
	insidePin       = "/run/pin"            // folder of pin.sock, in the dialer
)

// The names of an agent's containers.
const (
	runtimeName = "runtime"
	gatewayName = "gateway"
	dialerName  = "dialer"
)

// codeOutputs is how many outputs of code a gateway may hold at a time: two of
// each of four that execute (twice, as they are answered), of four spawned, and
// of the sixteen that ended last.
const codeOutputs = 2 * (2*4 + 4 + 16)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Limits of what Bulkhead itself runs for one agent.
var (
	gatewayLimits = engine.Limits{MemoryBytes: 256 << 20, MilliCPU: 2000, PIDs: 128, NoFile: 4096}
	dialerLimits  = engine.Limits{MemoryBytes: 64 << 20, MilliCPU: 1000, PIDs: 32, NoFile: 1024}
)

func rootfsOf(h layout.Host, a *host.Agent) string {
	if a.Want.Rootfs != "" {
		return a.Want.Rootfs
	}
	return filepath.Join(h.Image(a.Want.Image), "rootfs")
}

// runtimeSpec describes the container of the agent framework.
func runtimeSpec(h layout.Host, a *host.Agent, programs string) engine.Spec {
	conf := a.Place.Conf()
	s := engine.Spec{
		Version: engine.SpecVersion, Team: a.Place.Team, Agent: a.Place.Name,
		Name: runtimeName, Role: engine.RoleRuntime,
		Root: engine.Root{Path: rootfsOf(h, a)},
		User: engine.User{ID: layout.RuntimeID, Map: []engine.IDMap{{Inside: layout.RuntimeID, Host: a.IDs.Runtime()}}},
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 256 << 20, Mode: 0o1777},
			{Kind: engine.MountTmpfs, Target: "/run", Writable: true, Size: 16 << 20, Mode: 0o755},
			{Kind: engine.MountBind, Source: a.Place.GatewayDir(), Target: insideGateway},
			{Kind: engine.MountBind, Source: a.Place.Home(), Target: insideHome, Writable: true, Exec: true},
			{Kind: engine.MountBind, Source: a.Place.Workspace(), Target: insideWorkspace, Writable: true, Exec: true},
			{Kind: engine.MountBind, Source: programs, Target: programsDir, Exec: true},
			{Kind: engine.MountBind, Source: filepath.Join(conf, "hosts"), Target: "/etc/hosts"},
			{Kind: engine.MountBind, Source: filepath.Join(conf, "resolv.conf"), Target: "/etc/resolv.conf"},
			{Kind: engine.MountBind, Source: filepath.Join(conf, "passwd"), Target: "/etc/passwd"},
			{Kind: engine.MountBind, Source: filepath.Join(conf, "group"), Target: "/etc/group"},
		},
		Init:     []string{programsDir + "/" + shimProgram, "init"},
		Command:  a.Want.Command,
		Env:      runtimeEnv(a),
		Dir:      insideWorkspace,
		Hostname: a.Place.Name,
		Network:  engine.Network{Loopback: dial.StaticFor(a.Want).Loopback, UnprivilegedPorts: true},
		Limits: engine.Limits{
			MemoryBytes: a.Want.Limits.MemoryBytes, MilliCPU: a.Want.Limits.MilliCPU,
			PIDs: a.Want.Limits.PIDs, NoFile: a.Want.Limits.NoFile, CoreBytes: a.Want.Limits.CoreBytes,
		}.WithDefaults(),
		Cgroup: cgroupOf(a, runtimeName),
	}
	if len(a.Want.CAFiles) > 0 {
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: filepath.Join(conf, caFolder), Target: insideCA})
	}
	for _, m := range a.Want.Mounts {
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: m.Host, Target: m.Target})
	}
	return s
}

// byEngine makes a Spec one of the engine that the manifest names. One-off
// containers and the dialer are cells under every engine.
func byEngine(a *host.Agent, s engine.Spec) engine.Spec {
	if a.Want.Engine != string(engine.Podman) {
		return s
	}
	s.Engine, s.OCIRuntime = engine.Podman, a.Want.OCI
	if s.Role == engine.RoleGateway && podman.Relayed(&s) {
		s.OCIRuntime = "" // the gateway's dialer passes sockets in, which only the host's kernel takes
	}
	s.User.Map = append(s.User.Map, engine.IDMap{Inside: layout.EngineID, Host: a.IDs.Engine()})
	return s
}

// runSpec describes a one-off container: the runtime's profile without
// anything that belongs to the agent.
func runSpec(h layout.Host, a *host.Agent, programs string) engine.Spec {
	s := runtimeSpec(h, a, programs)
	s.Role, s.Init = engine.RoleRun, nil
	s.Network = engine.Network{}
	s.Dir = "/tmp"
	s.User = engine.User{ID: layout.ProcID, Map: []engine.IDMap{{Inside: layout.ProcID, Host: a.IDs.Proc()}}}
	env := map[string]string{"PATH": defaultPath, "HOME": "/tmp", "TMPDIR": "/tmp"}
	maps.Copy(env, caEnv(a))
	s.Env = inOrder(env)
	s.Mounts = slices.DeleteFunc(s.Mounts, func(m engine.Mount) bool {
		switch m.Target {
		case insideGateway, insideHome, insideWorkspace, programsDir:
			return true
		}
		return false
	})
	return s
}

// gatewaySpec describes the container of the agent's gateway: our static
// program on an empty root.
func gatewaySpec(a *host.Agent, programs string) engine.Spec {
	s := engine.Spec{
		Version: engine.SpecVersion, Team: a.Place.Team, Agent: a.Place.Name,
		Name: gatewayName, Role: engine.RoleGateway,
		User: engine.User{ID: layout.GatewayID, Map: []engine.IDMap{
			// The runtime's id is mapped so that the gateway can recognise its
			// peer; nothing in here can become it.
			{Inside: layout.RuntimeID, Host: a.IDs.Runtime()},
			{Inside: layout.GatewayID, Host: a.IDs.Gateway()},
		}},
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 16 << 20, Mode: 0o1777},
			{Kind: engine.MountBind, Source: a.Place.DialerDir(), Target: insideDialer},
			{Kind: engine.MountBind, Source: a.Place.Data(), Target: insideData, Writable: true},
			{Kind: engine.MountBind, Source: programs, Target: programsDir, Exec: true},
		},
		Init:     []string{programsDir + "/" + shimProgram, "init"},
		Command:  []string{programsDir + "/" + serveProgram, "gateway"},
		Env:      []string{"GOMAXPROCS=2", "GOGC=50", "HOME=/data", "TMPDIR=/tmp"},
		Dir:      "/",
		Hostname: a.Place.Name + "-gateway",
		Limits:   gatewayLimits.WithDefaults(),
		Cgroup:   cgroupOf(a, gatewayName),
	}
	if a.Messages {
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: a.Place.AdapterDir(), Target: insideAdapter})
	}
	if a.CodeImage() != "" {
		// It holds two outputs of each piece that runs or is remembered, and of
		// those that are answered a copy as JSON.
		if _, _, output := a.Want.Tools.CodeLimits(); output > team.DefaultCodeOutput {
			s.Limits.MemoryBytes += codeOutputs * (output - team.DefaultCodeOutput)
		}
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: a.Place.ProcDir(), Target: insideProc})
	}
	for _, name := range a.Services {
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: a.Place.ServiceDir(name), Target: insideService + name})
	}
	return s
}

// dialerSpec describes the agent's dialer: the host's network, nothing else of
// the host, and an id that nftables knows.
func dialerSpec(a *host.Agent, programs string) engine.Spec {
	return engine.Spec{
		Version: engine.SpecVersion, Team: a.Place.Team, Agent: a.Place.Name,
		Name: dialerName, Role: engine.RoleDialer,
		User: engine.User{ID: a.IDs.Dialer},
		Mounts: []engine.Mount{
			{Kind: engine.MountBind, Source: a.Place.PinDir(), Target: insidePin},
			{Kind: engine.MountBind, Source: programs, Target: programsDir, Exec: true},
		},
		Command:  []string{programsDir + "/" + netProgram, "dialer"},
		Env:      []string{"GOMAXPROCS=2", "GOGC=50"},
		Dir:      "/",
		Hostname: "dialer",
		Network:  engine.Network{Host: true},
		Limits:   dialerLimitsFor(a.Want).WithDefaults(),
		Cgroup:   cgroupOf(a, dialerName),
	}
}

// resolverSpec describes the resolver, which serves every team. etc is root's
// copy of the host's resolv.conf, hosts and nsswitch.conf, and of nothing else.
func resolverSpec(id uint32, programs, etc string) engine.Spec {
	return engine.Spec{
		Version: engine.SpecVersion, Name: "resolver", Role: engine.RoleResolver,
		User: engine.User{ID: id},
		Mounts: []engine.Mount{
			{Kind: engine.MountBind, Source: programs, Target: programsDir, Exec: true},
			{Kind: engine.MountBind, Source: etc, Target: "/etc"},
		},
		Command:  []string{programsDir + "/" + netProgram, "resolver"},
		Env:      []string{"GOMAXPROCS=2", "GOGC=50"},
		Dir:      "/",
		Hostname: "resolver",
		Network:  engine.Network{Host: true},
		Limits:   dialerLimits.WithDefaults(),
		Cgroup:   "resolver",
	}
}

func cgroupOf(a *host.Agent, container string) string {
	return filepath.Join(a.Place.Team, a.Place.Name, container)
}

func runtimeEnv(a *host.Agent) []string {
	proxy := "http://" + dial.StaticFor(a.Want).Proxy
	env := map[string]string{
		"PATH": defaultPath + ":" + programsDir, "HOME": insideHome, "USER": "agent", "LOGNAME": "agent", "TMPDIR": "/tmp",
		"LANG": "C.UTF-8", "SHELL": "/bin/sh",
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy,
		// Static hosts need no proxy, but what goes through it all the same works.
		"NO_PROXY": "localhost,127.0.0.1,::1", "no_proxy": "localhost,127.0.0.1,::1",
		"BULKHEAD_TEAM": a.Place.Team, "BULKHEAD_AGENT": a.Place.Name,
	}
	maps.Copy(env, caEnv(a))
	maps.Copy(env, a.Want.Env)
	return inOrder(env)
}

func inOrder(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// confFiles are the files of /etc that root makes for a runtime.
func confFiles(a *host.Agent) map[string]string {
	return map[string]string{
		"hosts": "127.0.0.1 localhost\n::1 localhost\n127.0.0.1 " + a.Place.Name + "\n" +
			strings.Join(append(dial.StaticFor(a.Want).Hosts, ""), "\n"),
		"resolv.conf": "# No name server: names are resolved outside, for listed destinations only.\n",
		"passwd": fmt.Sprintf("agent:x:%d:%d:agent:%s:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
			layout.RuntimeID, layout.RuntimeID, insideHome),
		"group": fmt.Sprintf("agent:x:%d:\nnogroup:x:65534:\n", layout.RuntimeID),
	}
}
