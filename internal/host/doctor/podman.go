package doctor

import (
	"context"
	"path"

	"bulkhead/internal/deny"
)

// podmanDirs are where Podman and OCI runtimes may be.
var podmanDirs = append([]string{"/usr/local/sbin", "/usr/local/bin"}, systemDirs...)

func podmanChecks() []Check {
	const only = "only the engine podman needs it; the engine cell makes containers by itself"
	return []Check{
		{Layer: deny.LayerPod, Name: "newuidmap and newgidmap", Look: idMaps, Why: only, Mend: "apt install uidmap"},
		{Layer: deny.LayerPod, Name: "Podman", Look: podman, Why: only, Mend: "apt install podman, or keep engine: cell"},
		{
			Layer: deny.LayerPod, Name: "OCI runtime", Look: ociRuntime,
			Why:  "crun refuses hybrid cgroups, and runc is what works there; on version 2 both do and crun is the lighter one (engine podman only)",
			Mend: "apt install crun",
		},
	}
}

func idMaps(_ context.Context, h Host) Answer {
	for _, p := range []string{"newuidmap", "newgidmap"} {
		if h.program(p, systemDirs) == "" {
			return Answer{State: Weak, Found: p + " not found", Where: systemDirs[0] + " and others"}
		}
	}
	return Answer{State: OK, Found: h.program("newuidmap", systemDirs), Where: systemDirs[0] + " and others"}
}

func podman(ctx context.Context, h Host) Answer {
	p := h.program("podman", podmanDirs)
	if p == "" {
		return Answer{State: Weak, Found: "not installed", Where: podmanDirs[0] + " and others"}
	}
	s, err := h.Kernel.Version(ctx, p)
	if err != nil {
		return unread(p, err)
	}
	a := Answer{State: OK, Found: s, Where: p + " --version"}
	if !h.release().family() {
		a.State = NotSupported
		a.Mend = "nobody ran the engine podman on this distribution yet"
	}
	return a
}

func ociRuntime(ctx context.Context, h Host) Answer {
	c, err := readCgroups(h)
	if err != nil {
		return unread(mountinfo, err)
	}
	fits := []string{"crun", "runc"}
	if c.version == "hybrid" || c.version == "v1" {
		fits = []string{"runc"}
	}
	for _, name := range fits {
		p := h.program(name, podmanDirs)
		if p == "" {
			continue
		}
		s, err := h.Kernel.Version(ctx, p)
		if err != nil {
			return unread(p, err)
		}
		return Answer{State: OK, Found: s + ": fits cgroups " + c.version, Where: p + " --version"}
	}
	a := Answer{State: Weak, Found: "neither crun nor runc is installed", Where: podmanDirs[0] + " and others"}
	if c.version == "hybrid" || c.version == "v1" {
		a.Mend = "apt install runc"
		a.Found = "no runc"
		if p := h.program("crun", podmanDirs); p != "" {
			a.Found, a.Where = path.Base(p)+" alone, which refuses cgroups "+c.version, p
		}
	}
	return a
}
