package lookpath

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFindUsesTheContainersPathAndNeverARelativeOne(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, c := range []struct {
		name, path, want string
	}{
		{"tool", "PATH=/nonexistent:" + dir, filepath.Join(dir, "tool")},
		{"/abs/x", "PATH=" + dir, "/abs/x"},
		{"tool", "PATH=.", ""},
		{"tool", "PATH=", ""},
		{"tool", "OTHER=x", ""},
		{"missing", "PATH=" + dir, ""},
	} {
		got, err := Find(c.name, []string{c.path})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s with %s: %q, %v", c.name, c.path, got, err)
		}
	}
}
