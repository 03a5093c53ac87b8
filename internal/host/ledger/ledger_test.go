package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func open(t *testing.T, path string) *Ledger {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestWhatWasAnnouncedIsThereAfterReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	l := open(t, path)
	a := Thing{Kind: Account, Name: "bh-t-a", Team: "t", Agent: "a"}
	c := Thing{Kind: Cgroup, Name: "t/a", Team: "t", Agent: "a"}
	if err := l.Announce(a, c, a); err != nil {
		t.Fatal(err)
	}
	if err := l.Forget(c); err != nil {
		t.Fatal(err)
	}
	l2 := open(t, path)
	if diff := cmp.Diff([]Thing{a}, l2.Things(nil)); diff != "" {
		t.Error(diff)
	}
	if !l2.Has(Account, "bh-t-a") || l2.Has(Cgroup, "t/a") {
		t.Error("Has disagrees with Things")
	}
}

func TestATornLastLineIsDropped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	l := open(t, path)
	a := Thing{Kind: Account, Name: "one"}
	if err := l.Announce(a); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"v":1,"seq":2,"op":"ma`); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	l2 := open(t, path)
	if err := l2.Announce(Thing{Kind: Account, Name: "two"}); err != nil {
		t.Fatal(err)
	}
	if got := len(open(t, path).Things(nil)); got != 2 {
		t.Errorf("%d things after a torn line and one more, want 2", got)
	}
}

func TestACorruptLineRefuses(t *testing.T) {
	for name, content := range map[string]string{
		"not JSON":          "nonsense\n",
		"other version":     `{"v":9,"seq":1,"op":"make","kind":"account","name":"x"}` + "\n",
		"unknown operation": `{"v":1,"seq":1,"op":"eat","kind":"account","name":"x"}` + "\n",
		"sequence repeats":  `{"v":1,"seq":1,"op":"make","kind":"account","name":"x"}` + "\n" + `{"v":1,"seq":1,"op":"gone","kind":"account","name":"x"}` + "\n",
		"no name":           `{"v":1,"seq":1,"op":"make","kind":"account"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "l")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); !errors.Is(err, ErrCorrupt) {
				t.Errorf("Open = %v, want ErrCorrupt", err)
			}
		})
	}
}

// Whatever is announced and forgotten, in whatever order and with reopenings
// anywhere, the ledger equals a plain map.
func TestLedgerEqualsAMap(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		path := filepath.Join(dir, rapid.StringMatching(`[a-z]{12}`).Draw(rt, "file"))
		l, err := Open(path)
		if err != nil {
			rt.Fatal(err)
		}
		model := map[Thing]bool{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			th := Thing{Kind: Account, Name: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "name")}
			switch rapid.IntRange(0, 2).Draw(rt, "op") {
			case 0:
				err, model[th] = l.Announce(th), true
			case 1:
				err = l.Forget(th)
				delete(model, th)
			default:
				_ = l.Close()
				l, err = Open(path)
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
		got := map[Thing]bool{}
		for _, th := range l.Things(nil) {
			got[th] = true
		}
		if diff := cmp.Diff(model, got); diff != "" {
			rt.Error(diff)
		}
		_ = l.Close()
	})
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"v":1,"seq":1,"op":"make","kind":"account","name":"x"}` + "\n"))
	f.Add([]byte("{}\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "l")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Open(path)
		if err != nil {
			return
		}
		before := l.Things(nil)
		_ = l.Close()
		l, err = Open(path)
		if err != nil {
			t.Fatalf("opened once, then not: %v", err)
		}
		if diff := cmp.Diff(before, l.Things(nil)); diff != "" {
			t.Error(diff)
		}
		_ = l.Close()
	})
}

func TestReadLeavesTheFileAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	l := open(t, path)
	a := Thing{Kind: Account, Name: "one"}
	if err := l.Announce(a, Thing{Kind: Account, Name: "two"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(raw[:len(raw)-3]) // torn
	if diff := cmp.Diff([]Thing{a}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := Read([]byte("x\n")); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a line that is none: %v", err)
	}
}
