package cgroup

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Subgroup is the DelegateSubgroup= of our systemd unit
// (deploy/bulkhead-warden.service): where systemd puts the warden inside the
// unit's own group.
const Subgroup = "warden"

// Place says where the root folder of the calling process belongs, for [Open].
//
// It is [RootName] at the hierarchy's root, except for a warden that systemd
// runs with Delegate=yes and DelegateSubgroup=[Subgroup]: then the unit's group
// is ours to divide, and the root folder stands beside the subgroup, where
// systemd counts and shows it as part of the unit.
//
// Without DelegateSubgroup= (systemd before 254, Debian 12) the unit's group is
// no place: a group that shares controllers out cannot take the next warden's
// process in, so systemd could not start the unit again while agents run
// (kernel: admin-guide/cgroup-v2.rst, "No Internal Process Constraint").
func Place() (string, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("cgroup: find the hierarchies: %w", err)
	}
	v2, _ := Mounts(string(raw))
	if v2 == "" || !hasControllers(v2) {
		return RootName, nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("cgroup: find this process: %w", err)
	}
	return place(string(own), func(group string) bool { return delegatedToRoot(filepath.Join(v2, group)) }), nil
}

// place decides from /proc/self/cgroup. delegated is asked about one group, as
// a path from the hierarchy's root on.
func place(own string, delegated func(group string) bool) string {
	for line := range strings.Lines(own) {
		group, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "0::/")
		if !ok || path.Base(group) != Subgroup {
			continue
		}
		unit := path.Dir(group)
		root := path.Join(unit, RootName)
		if unit == "." || checkPath(root) != nil || !delegated(unit) {
			continue
		}
		return root
	}
	return RootName
}

// delegatedToRoot reads the mark that systemd puts on a unit's group with
// Delegate= (systemd.resource-control(5)). A user's own manager is delegated
// as well, but its groups belong to that user, who could move what is in them.
func delegatedToRoot(dir string) bool {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Uid != 0 {
		return false
	}
	mark := make([]byte, 8)
	n, err := unix.Getxattr(dir, "trusted.delegate", mark)
	return err == nil && string(mark[:n]) == "1"
}
