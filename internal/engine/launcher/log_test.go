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
	l, err := openLog(path, 3000)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, err := l.line(time.Unix(0, 1), "stdout", true, []byte(strings.Repeat("x", 50))); err != nil {
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

// What is printed at once is written at once; what is printed for long is held
// to a rate, also in lines so short that their time stamps are most of it.
func TestEndlessOutputIsHeldToARate(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	if wait := p.take(now, logBurst); wait != 0 {
		t.Errorf("a burst waits %s", wait)
	}
	if wait := p.take(now, logRate); wait != time.Second {
		t.Errorf("after a burst, a second's worth waits %s", wait)
	}
	now = now.Add(time.Second)
	if wait := p.take(now, 0); wait != 0 {
		t.Errorf("a second later one waits %s", wait)
	}
	if wait := p.take(now.Add(time.Hour), logBurst); wait != 0 {
		t.Errorf("an hour later a burst waits %s", wait)
	}
	l, err := openLog(filepath.Join(t.TempDir(), "c.log"), logSize)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	l.pace = pace{spent: 2 * logBurst, at: now}
	if wait, err := l.line(now, "stdout", true, nil); err != nil || wait < 8*time.Second {
		t.Errorf("an empty line over the rate waits %s, %v", wait, err)
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
