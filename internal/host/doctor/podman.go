package doctor

import (
	"context"
	"path"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine/podman/release"
)

// podmanDirs are where Podman and OCI runtimes may be.
var podmanDirs = append([]string{"/usr/local/sbin", "/usr/local/bin"}, systemDirs...)

func podmanChecks() []Check {
	const only = "only the engine podman needs it; the engine cell makes containers by itself"
	return []Check{
		{Layer: deny.LayerPod, Name: "Podman", Look: podman, Why: only, Mend: release.Way},
		{
			Layer: deny.LayerPod, Name: "OCI runtime", Look: ociRuntime,
			Why:  "crun leaves control groups alone, which are the warden's; runc insists on making some where version 2 is mounted (engine podman only)",
			Mend: "apt install crun",
		},
	}
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
		a.State, a.Found, a.Mend = Unknown, p+", whose version no package tells", "see `podman --version`: "+release.Way
	default:
		a.Found = v
		_, upstream, epoch := strings.Cut(v, ":")
		if !epoch {
			upstream = v
		}
		r, err := release.Parse(upstream)
		if err == nil {
			err = r.Check()
		}
		if err != nil {
			a.State, a.Found = Weak, v+": "+err.Error()
		}
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
	if c.version == "v2" {
		fits = fits[:1]
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
	if p := h.program("runc", podmanDirs); p != "" {
		a.Found, a.Where = "runc alone, which does not fit cgroups "+c.version, p
	}
	return a
}
