package warden

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/launcher"
	"bulkhead/internal/host"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// What code that an agent's gateway has run may take, each piece of it.
// The manifest says how much memory and how many processes.
var codeLimits = engine.Limits{MilliCPU: 1000, NoFile: 1024, FileBytes: codeScratch}

const (
	codeScratch = 64 << 20     // bytes of /tmp, and of HOME
	codeRunning = 8            // pieces at a time
	insideProc  = "/run/proc"  // folder of proc.sock, in the gateway
	codeSocket  = "/proc.sock" // in it
)

// codeSpec describes the cells in which an agent's code runs: the toolchain's
// image and memory to write to. Nothing of the agent, of its gateway or of the
// host is there, and its id is neither's.
func codeSpec(h layout.Host, a *host.Agent) engine.Spec {
	limits := codeLimits
	limits.MemoryBytes, limits.PIDs, _ = a.Want.Tools.CodeLimits()
	return engine.Spec{
		Version: engine.SpecVersion, Team: a.Place.Team, Agent: a.Place.Name, Role: engine.RoleRun,
		Root: engine.Root{Path: filepath.Join(h.Image(a.CodeImage()), "rootfs")},
		User: engine.User{ID: layout.ProcID, Map: []engine.IDMap{{Inside: layout.ProcID, Host: a.IDs.Proc()}}},
		Mounts: []engine.Mount{
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Exec: true, Size: codeScratch, Mode: 0o1777},
			{Kind: engine.MountTmpfs, Target: insideHome, Writable: true, Exec: true, Size: codeScratch, Mode: 0o700},
		},
		Env:      []string{"HOME=" + insideHome, "LANG=C.UTF-8", "PATH=" + defaultPath, "TMPDIR=/tmp"},
		Dir:      insideHome,
		Hostname: a.Place.Name + "-code",
		Limits:   limits.WithDefaults(),
	}
}

// ensureCode has the agent's launcher run code for its gateway. A launcher that
// does already, from before this warden, is left alone: what it runs goes on.
// The caller holds a.procs.
func (a *agentRun) ensureCode(ctx context.Context) error {
	if a.CodeImage() == "" {
		return nil
	}
	path := a.Place.ProcSocket()
	if serves, err := listening(path); serves || err != nil {
		return err
	}
	spec := a.weaker(codeSpec(a.w.host, &a.Agent))
	if err := checkRootfs(spec.Root.Path, &team.Agent{Image: a.CodeImage()}); err != nil {
		return fmt.Errorf("tools.code: %w", err)
	}
	f, err := listenFile(path, 0o660, a.IDs.Gateway())
	if err != nil {
		return err
	}
	err = a.launcher.ServeCode(ctx, launcher.CodeConfig{Spec: spec, Gateway: a.IDs.Gateway(), Running: codeRunning}, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("tools.code: %w", err)
	}
	return nil
}

// codeContainers are the rows of a status for cells with code, and for those
// that wait for some.
func (a *agentRun) codeContainers(list []launcher.Container) []wire.ContainerStatus {
	var out []wire.ContainerStatus
	for _, c := range list {
		if c.State != launcher.StateRunning || !strings.HasPrefix(c.Name, launcher.CodePrefix) {
			continue
		}
		out = append(out, wire.ContainerStatus{
			Name: c.Name, HostID: a.IDs.Proc(), Running: true, PID: c.HostPID, Since: c.Since.UTC().Format("2006-01-02T15:04:05Z07:00"),
			MemoryBytes: a.w.memoryOf(cgroupOf(&a.Agent, c.Name)),
		})
	}
	return out
}
