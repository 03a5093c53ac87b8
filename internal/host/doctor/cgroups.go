package doctor

import (
	"context"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/deny"
)

func cgroupChecks() []Check {
	return []Check{
		{
			Layer: deny.LayerPod, Name: "cgroup controllers memory, pids and cpu", Need: Required, Look: controllers,
			Why:  "an agent must not exhaust the host",
			Mend: "boot with these controllers enabled (cgroup_enable=memory on some ARM boards)",
		},
		{
			Layer: deny.LayerPod, Name: "cgroup delegation", Look: delegation,
			Why:  "with a part of its unit's group of its own, agents are counted and shown as part of the warden's unit",
			Mend: "nothing is needed; systemd 254 or later does it (Debian 13)",
		},
	}
}

func controllers(_ context.Context, h Host) Answer {
	c, err := readCgroups(h)
	if err != nil {
		return unread(mountinfo, err)
	}
	if c.version == "" {
		return Answer{State: Missing, Found: "no hierarchy is mounted", Where: mountinfo, Mend: "mount -t cgroup2 cgroup2 /sys/fs/cgroup"}
	}
	where := mountinfo
	if c.version == "v2" {
		where = c.point + "/cgroup.controllers"
	}
	lacks := slices.DeleteFunc(cgroup.Controllers(), func(w string) bool { return slices.Contains(c.controllers, w) })
	if len(lacks) > 0 {
		return Answer{State: Missing, Found: c.version + " without " + strings.Join(lacks, ", "), Where: where}
	}
	return Answer{State: OK, Found: c.version + ": " + strings.Join(cgroup.Controllers(), ", "), Where: where}
}

// delegateSubgroup is the first systemd with DelegateSubgroup=.
const delegateSubgroup = 254

func delegation(ctx context.Context, h Host) Answer {
	c, err := readCgroups(h)
	if err != nil {
		return unread(mountinfo, err)
	}
	const systemd = "/run/systemd/system"
	switch {
	case c.version == "":
		return Answer{State: Unknown, Found: "no hierarchy is mounted", Where: mountinfo, Mend: "mount -t cgroup2 cgroup2 /sys/fs/cgroup"}
	case c.version != "v2":
		return Answer{State: OK, Found: "not used on " + c.version + ": the warden has a folder at each hierarchy's root", Where: mountinfo}
	case !h.exists(systemd):
		return Answer{State: OK, Found: "not used without systemd: the warden has a folder at the hierarchy's root", Where: systemd}
	}
	unit := c.point + "/system.slice/bulkhead-warden.service"
	if h.exists(unit + "/" + cgroup.Subgroup) {
		return Answer{State: OK, Found: "the warden divides its unit's group", Where: unit}
	}
	program := h.program("systemctl", systemDirs)
	if program == "" {
		return Answer{State: Unknown, Found: "no systemctl to ask for the version", Where: systemd}
	}
	s, err := h.Kernel.Version(ctx, program)
	if err != nil {
		return unread(program, err)
	}
	v, ok := parseVersion(s)
	switch {
	case !ok:
		return Answer{State: Unknown, Found: s, Where: program}
	case v[0] < delegateSubgroup:
		return Answer{State: Weak, Found: s + " has no DelegateSubgroup=: the warden takes a folder at the hierarchy's root", Where: program}
	}
	return Answer{State: OK, Found: s + ": possible once the warden runs as a unit", Where: program}
}
