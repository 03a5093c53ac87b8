package stage2

import (
	"os"
	"path/filepath"
	"testing"
)

func FuzzParsePlan(f *testing.F) {
	f.Add([]byte(`{"argv":["/bin/true"],"dir":"/","proc":true,"profile":{"role":"run","seccomp":true}}`))
	f.Add([]byte(`{"wait":true}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := parsePlan(raw)
		if err == nil && len(p.Argv) == 0 && !p.Wait {
			t.Errorf("%q gives a plan without a command", raw)
		}
	})
}

func TestLookPathUsesTheContainersPathAndNeverARelativeOne(t *testing.T) {
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
		got, err := LookPath(c.name, []string{c.path})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s with %s: %q, %v", c.name, c.path, got, err)
		}
	}
}
