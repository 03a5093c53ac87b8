package prove

import (
	"slices"
	"strings"
	"testing"
)

const whole = `1 0 0:30 / / ro,nosuid,nodev - ext4 /dev/vda rw
2 1 0:5 / /proc rw,nosuid,nodev,noexec - proc proc rw,hidepid=invisible
3 2 0:5 /sys /proc/sys ro,nosuid,nodev,noexec - proc proc rw
4 2 0:5 /irq /proc/irq ro - proc proc rw
5 1 0:6 / /dev ro,nosuid,noexec - tmpfs dev rw
6 5 0:7 / /dev/pts rw,nosuid,noexec - devpts devpts rw
7 5 0:8 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw
8 1 0:9 / /tmp rw,nosuid,nodev - tmpfs tmpfs rw
`

func TestEachFlagThatAMountLacksIsSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		old, now string
		want     []string
	}{
		"nothing":                        {"", "", nil},
		"a root that can be written":     {"/ / ro,", "/ / rw,", []string{"/ can be written"}},
		"a /proc/sys that can":           {"/proc/sys ro,", "/proc/sys rw,", []string{"/proc/sys can be written"}},
		"a /proc/sys without a cover":    {"3 2 0:5 /sys /proc/sys ro,nosuid,nodev,noexec - proc proc rw\n", "", []string{"/proc/sys is not covered"}},
		"set-user-id programs":           {"/tmp rw,nosuid,", "/tmp rw,", []string{"/tmp is not nosuid"}},
		"device nodes of its own":        {"/tmp rw,nosuid,nodev", "/tmp rw,nosuid", []string{"/tmp is not nodev"}},
		"device nodes in shared memory":  {"/dev/shm rw,nosuid,nodev", "/dev/shm rw,nosuid", []string{"/dev/shm is not nodev"}},
		"a cover of /proc that is loose": {"/proc/irq ro", "/proc/irq rw", []string{"/proc/irq can be written", "/proc/irq is not nosuid"}},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := parseMounts(strings.Replace(whole, tc.old, tc.now, 1))
			if err != nil {
				t.Fatal(err)
			}
			if got := loose(list); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add(whole)
	f.Add("1 2 3 4 5 6 - a b c")
	f.Fuzz(func(_ *testing.T, text string) {
		if list, err := parseMounts(text); err == nil {
			_ = loose(list)
		}
	})
}
