package prove

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEachBitThatAPlaceHasTooManyIsSeen(t *testing.T) {
	me, mine := uint32(os.Getuid()), uint32(os.Getgid())
	for name, tc := range map[string]struct {
		is   os.FileMode
		uid  uint32
		want bool
	}{
		"as it should be":     {0o700, me, true},
		"with less":           {0o500, me, true},
		"readable by all":     {0o704, me, false},
		"writable by a group": {0o720, me, false},
		"sticky":              {0o700 | os.ModeSticky, me, false},
		"of somebody else":    {0o700, me + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "home")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, tc.is); err != nil {
				t.Fatal(err)
			}
			s := modes(Agent{Name: "a", Places: []Place{{dir, tc.uid, mine, 0o700}, {dir + "-none", me, mine, 0o700}}})
			s.close()
			if s.Holds != tc.want {
				t.Errorf("holds: %t, against it %q", s.Holds, s.Against)
			}
		})
	}
	s := modes(Agent{Name: "a"})
	if s.close(); s.Holds {
		t.Error("of nothing at all it holds")
	}
}
