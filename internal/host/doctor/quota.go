package doctor

import (
	"context"
	"strings"

	"bulkhead/internal/deny"
)

// quotaChecks are about what one agent may take of the host's disk.
func quotaChecks() []Check {
	return []Check{
		{
			Layer: deny.LayerQuota, Name: "loop devices", Need: Optional, Look: loopDevices,
			Why:  "each agent's files lie on a file system of their own in a file, so that no agent fills the host's disk",
			Mend: "modprobe loop; inside a container or a guest, give it /dev/loop-control and loop devices",
		},
		{
			Layer: deny.LayerQuota, Name: "ext4", Need: Optional, Look: ext4,
			Why:  "that file system is ext4, whatever the host's own is",
			Mend: "modprobe ext4, or boot a kernel that has it",
		},
		{
			Layer: deny.LayerQuota, Name: "mkfs.ext4", Need: Optional, Look: tool("mkfs.ext4"),
			Why: "it makes that file system", Mend: "apt install e2fsprogs",
		},
	}
}

func loopDevices(_ context.Context, h Host) Answer {
	const where = "/dev/loop-control"
	if !h.exists(where) {
		return Answer{State: Missing, Found: "not there", Where: where}
	}
	return Answer{State: OK, Found: "there", Where: where}
}

func ext4(_ context.Context, h Host) Answer {
	const where = "/proc/filesystems"
	text, err := h.text(where)
	if err != nil {
		return unread(where, err)
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == "ext4" {
			return Answer{State: OK, Found: "listed", Where: where}
		}
	}
	// The kernel loads it when it is first mounted.
	release, err := h.text("/proc/sys/kernel/osrelease")
	if err != nil {
		return unread("/proc/sys/kernel/osrelease", err)
	}
	modules := "/lib/modules/" + release + "/modules.dep"
	if deps, err := h.text(modules); err == nil && strings.Contains(deps, "/ext4.ko") {
		return Answer{State: OK, Found: "a module, loaded when it is needed", Where: modules}
	}
	return Answer{State: Missing, Found: "neither listed nor a module", Where: where}
}
