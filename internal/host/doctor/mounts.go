package doctor

import (
	"context"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
)

// mountinfo is where the kernel lists this process's mounts.
const mountinfo = "/proc/self/mountinfo"

// mount is a line of proc_pid_mountinfo(5).
type mount struct {
	id, parent, root, point, kind string
	shared                        bool
}

func parseMounts(text string) []mount {
	var all []mount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimRight(line, "\n"), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 1 {
			continue
		}
		all = append(all, mount{
			id: left[0], parent: left[1], root: left[3], point: left[4], kind: right[0],
			shared: slices.ContainsFunc(left[6:], func(o string) bool { return strings.HasPrefix(o, "shared:") }),
		})
	}
	return all
}

// emptyInProc are folders of proc that the kernel keeps empty to be mounted
// on; what is mounted there hides nothing (is_empty_dir_inode, fs/namespace.c).
var emptyInProc = []string{"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/openprom", "/proc/fs/xfs", "/proc/xen"}

// covers gives what hides a part of every proc that is mounted, or nothing
// when one of them is whole (mnt_already_visible, fs/namespace.c).
func covers(all []mount) (found bool, by []string) {
	for _, p := range all {
		if p.kind != "proc" || p.root != "/" {
			continue
		}
		found = true
		var on []string
		for _, m := range all {
			if m.parent == p.id && m.id != p.id && !slices.Contains(emptyInProc, m.point) {
				on = append(on, m.point)
			}
		}
		if len(on) == 0 {
			return true, nil
		}
		by = on
	}
	return found, by
}

func procVisible(_ context.Context, h Host) Answer {
	s, err := h.text(mountinfo)
	if err != nil {
		return unread(mountinfo, err)
	}
	switch found, by := covers(parseMounts(s)); {
	case !found:
		return Answer{State: Missing, Found: "no whole proc is mounted", Where: mountinfo}
	case len(by) > 0:
		return Answer{State: Missing, Found: "covered at " + strings.Join(by[:min(len(by), 4)], ", "), Where: mountinfo}
	}
	return Answer{State: OK, Found: "not covered", Where: mountinfo}
}

func propagation(_ context.Context, h Host) Answer {
	s, err := h.text(mountinfo)
	if err != nil {
		return unread(mountinfo, err)
	}
	a := Answer{State: Unknown, Found: "no root folder in the list", Where: mountinfo}
	for _, m := range parseMounts(s) { // the last one is on top
		switch {
		case m.point != "/":
		case m.shared:
			a.State, a.Found = OK, "shared"
		default:
			a.State, a.Found = Weak, "private"
		}
	}
	return a
}

// hierarchies describes the cgroups: the version that carries the controllers,
// and which of them are there.
type hierarchies struct {
	version     string // "v2", "hybrid", "v1", or "" without any
	point       string // of version 2
	controllers []string
}

// readCgroups follows internal/cgroup: version 2 is used when it has the
// controllers, else version 1. /proc/cgroups is asked for neither: it leaves
// out every controller that version 1 cannot have (cgroup1_subsys_absent,
// kernel/cgroup/cgroup-v1.c), memory on a kernel without MEMCG_V1.
func readCgroups(h Host) (hierarchies, error) {
	s, err := h.text(mountinfo)
	if err != nil {
		return hierarchies{}, err
	}
	v2, v1 := cgroup.Mounts(s)
	var out hierarchies
	if v2 != "" {
		out.point = v2
		text, err := h.text(v2 + "/cgroup.controllers")
		if err != nil {
			return hierarchies{}, err
		}
		out.controllers = strings.Fields(text)
	}
	switch have := slices.Sorted(slices.Values(out.controllers)); {
	case v2 != "" && containsAll(have, cgroup.Controllers()):
		out.version = "v2"
	case len(v1) > 0:
		out.version = "v1"
		if v2 != "" {
			out.version = "hybrid"
		}
		out.controllers = nil
		for _, c := range cgroup.Controllers() {
			if v1[c] != "" {
				out.controllers = append(out.controllers, c)
			}
		}
	case v2 != "":
		out.version = "v2"
	}
	return out, nil
}

func containsAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
}
