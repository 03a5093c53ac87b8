package doctor

import (
	"context"
	"path"
	"strings"

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

func podman(_ context.Context, h Host) Answer {
	p := h.program("podman", podmanDirs)
	if p == "" {
		return Answer{State: Weak, Found: "not installed", Where: podmanDirs[0] + " and others"}
	}
	// Podman is not run for its version: even --version makes folders below
	// /tmp or /run for the one who asks (4.3.1).
	a := Answer{State: OK, Where: p + ", " + dpkgStatus}
	status, err := h.text(dpkgStatus)
	v := packageVersion(status, "podman")
	switch {
	case err != nil && !absent(err):
		return unread(dpkgStatus, err)
	case v == "" || path.Dir(p) != "/usr/bin":
		a.State, a.Found, a.Mend = Unknown, p+", whose version no package tells", "see `podman --version`: 4.3 or later"
	default:
		a.Found = v
	}
	if !h.release().family() {
		a.State = NotSupported
		a.Mend = "nobody ran the engine podman on this distribution yet"
	}
	return a
}

// dpkgStatus is dpkg's list of what is installed, in stanzas of deb822(5).
const dpkgStatus = "/var/lib/dpkg/status"

// packageVersion finds the version of an installed package.
func packageVersion(status, name string) string {
	for stanza := range strings.SplitSeq(status, "\n\n") {
		if !strings.HasPrefix(strings.TrimLeft(stanza, "\n"), "Package: "+name+"\n") {
			continue
		}
		version, installed := "", false
		for line := range strings.Lines(stanza) {
			if v, ok := strings.CutPrefix(line, "Version: "); ok {
				version = strings.TrimSpace(v)
			}
			installed = installed || strings.TrimSpace(line) == "Status: install ok installed" || strings.TrimSpace(line) == "Status: hold ok installed"
		}
		if installed {
			return version
		}
	}
	return ""
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
