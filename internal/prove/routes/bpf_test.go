package routes

import "testing"

func TestTheHierarchyIsFoundWhereItIsMounted(t *testing.T) {
	for text, want := range map[string]string{
		"31 23 0:28 / /sys/fs/cgroup rw shared:5 - cgroup2 cgroup2 rw,nsdelegate\n":                                   "/sys/fs/cgroup",
		"30 22 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n31 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n": "/sys/fs/cgroup/unified",
		"31 23 0:28 /user.slice /mnt rw - cgroup2 cgroup2 rw\n":                                                       "",
		"31 23 0:28 / /a\\040b rw - cgroup2 cgroup2 rw\n":                                                             "",
		"31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n":                                                 "",
		"31 23": "", "": "", " - cgroup2 ": "",
	} {
		if got := mountedAt(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func FuzzMountedAt(f *testing.F) {
	f.Add("31 23 0:28 / /sys/fs/cgroup rw shared:5 - cgroup2 cgroup2 rw\n")
	f.Fuzz(func(_ *testing.T, s string) { _ = mountedAt(s) })
}
