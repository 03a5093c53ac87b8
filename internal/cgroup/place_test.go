package cgroup

import (
	"strings"
	"testing"
)

func TestRootFolderStandsWhereSystemdDelegatedIt(t *testing.T) {
	yes, no := func(string) bool { return true }, func(string) bool { return false }
	for name, c := range map[string]struct {
		own       string
		delegated func(string) bool
		want      string
	}{
		"in the delegated subgroup of a unit":          {"0::/system.slice/bulkhead-warden.service/warden\n", yes, "system.slice/bulkhead-warden.service/bulkhead"},
		"in a subgroup of that name, not delegated":    {"0::/system.slice/bulkhead-warden.service/warden\n", no, "bulkhead"},
		"in the unit's own group (systemd before 254)": {"0::/system.slice/bulkhead-warden.service\n", yes, "bulkhead"},
		"in a login session":                           {"0::/user.slice/user-1000.slice/session-3.scope\n", yes, "bulkhead"},
		"in the hierarchy's root":                      {"0::/\n", yes, "bulkhead"},
		"in a subgroup of the hierarchy's root":        {"0::/warden\n", yes, "bulkhead"},
		"in a hybrid host's version 1 groups":          {"5:memory:/a/warden\n1:name=systemd:/a/warden\n0::/b\n", yes, "bulkhead"},
		"outside of the cgroup namespace":              {"0::/../../x/warden\n", yes, "bulkhead"},
		"under a name that is one of the kernel's":     {"0::/cgroup.procs/warden\n", yes, "bulkhead"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := place(c.own, c.delegated); got != c.want {
				t.Errorf("place says %q, want %q", got, c.want)
			}
		})
	}
}

func FuzzPlaceIsAPathOfARootFolder(f *testing.F) {
	f.Add("0::/system.slice/bulkhead-warden.service/warden\n")
	f.Add("0::/../warden\n")
	f.Add("0::/a//b/warden\n")
	f.Add("0::/a\\x2db.service/warden\n")
	f.Fuzz(func(t *testing.T, own string) {
		got := place(own, func(string) bool { return true })
		if checkPath(got) != nil || !strings.HasSuffix("/"+got, "/"+RootName) {
			t.Errorf("place says %q", got)
		}
	})
}
