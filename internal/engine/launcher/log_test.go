package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLogRotatesAndKeepsThreeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.log")
	l, err := openLog(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := l.line(time.Unix(0, 1), "stdout", true, []byte(strings.Repeat("x", 50))); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := filepath.Glob(path + "*")
	if err != nil || len(got) != logFiles {
		t.Fatalf("files %v, %v", got, err)
	}
	for _, f := range got {
		st, err := os.Stat(f)
		if err != nil || st.Size() > 1000 || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", f, st, err)
		}
	}
}

func TestLongLinesComeInPartsAndTheLastLineNeedsNoEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.log")
	l, err := openLog(path, logSize)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.copy("stderr", strings.NewReader(strings.Repeat("y", logPart+5)+"\nlast")); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], " stderr P y") || !strings.HasSuffix(lines[1], " stderr F yyyyy") || !strings.HasSuffix(lines[2], " stderr F last") {
		t.Errorf("lines %d: %.60q", len(lines), lines)
	}
	if _, err := time.Parse(time.RFC3339Nano, strings.Fields(lines[0])[0]); err != nil {
		t.Error(err)
	}
}
