package podman

import (
	"fmt"
	"strings"
	"testing"
)

// confined is the status of a container as it must be.
const confined = `Name:	bulkhead-shim
Uid:	201999	201999	201999	201999
Gid:	201999	201999	201999	201999
Groups:	201999 
NSpid:	383	25	1
CapInh:	0000000000000000
CapPrm:	0000000000000000
CapEff:	0000000000000000
CapBnd:	0000000000000000
CapAmb:	0000000000000000
NoNewPrivs:	1
Seccomp:	2
Seccomp_filters:	3
`

func TestStatusThatIsNotConfinedIsSeen(t *testing.T) {
	s := gateway()
	if err := checkStatus(&s, confined); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string][2]string{
		"Uid is":                   {"Uid:	201999	201999", "Uid:	201999	5000"},
		"Gid is":                   {"Gid:	201999", "Gid:	0"},
		"in the groups":            {"Groups:	201999", "Groups:	27"},
		"not process 1":            {"25	1", "25	2"},
		"capabilities are left":    {"CapBnd:	0000000000000000", "CapBnd:	0000000000000400"},
		"no_new_privs is not set":  {"NoNewPrivs:	1", "NoNewPrivs:	0"},
		"seccomp mode is 0":        {"Seccomp:	2", "Seccomp:	0"},
		"lacks Uid, Gid, Groups":   {"NSpid:	383	25	1\n", ""},
		"status lacks one of CapI": {"CapAmb:	0000000000000000\n", ""},
	} {
		text := strings.Replace(confined, change[0], change[1], 1)
		if err := checkStatus(&s, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

const mounted = `600 500 0:50 / / ro,nosuid,nodev,relatime - tmpfs none rw
601 600 0:51 / /tmp rw,nosuid,nodev,noexec,relatime - tmpfs none rw
602 600 8:1 /programs /.bulkhead ro,nosuid,nodev,relatime - ext4 /dev/vda rw
603 600 0:52 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
604 600 0:53 / /dev rw,nosuid,noexec - tmpfs tmpfs rw
605 604 0:54 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw
606 604 0:55 /null /dev/null ro,nosuid,noexec,relatime - tmpfs none rw
607 603 0:52 /sys /proc/sys ro,relatime - proc proc rw
608 600 0:56 / /etc/hostname ro,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw
`

func TestMountsThatTheSpecDoesNotHaveAreSeen(t *testing.T) {
	s := gateway()
	if err := checkMounts(&s, mounted); err != nil {
		t.Fatal(err)
	}
	line := func(point, options string) string {
		return fmt.Sprintf("700 600 0:60 / %s %s - tmpfs none rw\n", point, options)
	}
	for want, text := range map[string]string{
		"mount /: ro is false":                       strings.Replace(mounted, "/ / ro", "/ / rw", 1),
		"mount /: nosuid is false":                   strings.Replace(mounted, "/ / ro,nosuid", "/ / ro", 1),
		"mount /tmp is missing":                      strings.Replace(mounted, " /tmp ", " /elsewhere ", 1),
		"mount /tmp: noexec is false":                mounted + line("/tmp", "rw,nosuid,nodev"),
		"mount /.bulkhead: ro is false":              strings.Replace(mounted, "/.bulkhead ro", "/.bulkhead rw", 1),
		"/data is a writable mount that the Spec":    mounted + line("/data", "rw,nosuid,nodev,noexec"),
		"/etc/hostname is a writable mount":          strings.Replace(mounted, "/etc/hostname ro", "/etc/hostname rw", 1),
		"mount /dev/shm: noexec is false":            strings.Replace(mounted, "/dev/shm rw,nosuid,nodev,noexec", "/dev/shm rw,nosuid,nodev", 1),
		"/sys/fs/cgroup is a writable mount":         mounted + line("/sys/fs/cgroup", "rw,nosuid,nodev,noexec"),
		"nothing is mounted on /proc":                strings.Replace(mounted, " /proc rw", " /procx ro", 1),
		"/dev/sda is a writable mount that the Spec": mounted + line("/dev/sda", "rw,relatime"),
		"has too few fields":                         mounted + "nonsense\n",
	} {
		if err := checkMounts(&s, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestMapsMustBeTheSpecs(t *testing.T) {
	s := gateway()
	const good = "         0     204999          1\n      1000     200999          1\n      2000     201999          1\n"
	if err := checkMap(&s, good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "0 5000 1\n1000 200999 1\n2000 201999 1\n", good + "1 200000 65536\n", strings.Replace(good, "201999          1", "201999          2", 1),
	} {
		if err := checkMap(&s, bad); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func FuzzReadBackParsersNeverPassNonsense(f *testing.F) {
	f.Add(confined, mounted)
	f.Add("", "")
	f.Add("NSpid:\n"+confined, mounted)
	f.Add("Uid:\n", "1 2 3:4 / / ro - x")
	f.Fuzz(func(t *testing.T, status, mounts string) {
		s := gateway()
		if checkStatus(&s, status) == nil {
			for _, want := range []string{"NoNewPrivs:", "Seccomp:", "CapBnd:", "201999", "NSpid:"} {
				if !strings.Contains(status, want) {
					t.Errorf("passed without %s: %q", want, status)
				}
			}
		}
		if checkMounts(&s, mounts) == nil && !strings.Contains(mounts, "/.bulkhead") {
			t.Errorf("passed without a mount of the Spec: %q", mounts)
		}
	})
}
