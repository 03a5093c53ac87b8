package tree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/test/system/throwaway"
)

// An agent may nest folders deeper than root has descriptors, and call them
// what root would call them.
func TestDeepTreesAreGivenAwayAndRemoved(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		few := unix.Rlimit{Cur: 128, Max: was.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }()
		_, dir := home(t)
		back, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Chdir(dir); err != nil { // back again below, in the middle of the test
			t.Fatal(err)
		}
		name := strings.Repeat("d", 200)
		for i := range 1000 {
			if err := unix.Mkdir(name, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, side := range []string{".removed-1", ".removed-z", "side"} {
				if err := unix.Mkdir(side, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if i%100 == 0 {
				if err := unix.Mkfifo("fifo", 0o600); err != nil {
					t.Fatal(err)
				}
				if err := unix.Symlink("/etc", "link"); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Chdir(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile("bottom", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		bottom, err := os.Open("bottom")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = bottom.Close() }()
		if err := unix.Chdir(back); err != nil {
			t.Fatal(err)
		}
		if err := Chown(dir, agent+1, agent+1); err != nil {
			t.Errorf("%.300s", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(bottom.Fd()), &st); err != nil || st.Uid != agent+1 {
			t.Errorf("the bottom belongs to %d, %v", st.Uid, err)
		}
		if err := unix.Stat("/etc", &st); err != nil || st.Uid != 0 {
			t.Errorf("/etc, to which a link led, belongs to %d, %v", st.Uid, err)
		}
		if err := Remove(dir); err != nil {
			t.Errorf("%.300s", err)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", filepath.Base(dir), err)
		}
		if _, err := os.Stat("/etc/passwd"); err != nil {
			t.Errorf("what a link led to: %v", err)
		}
	})
}
