package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/tool"
)

func TestUndoTouchesOnlyWhatIsAsItWasLeft(t *testing.T) {
	w := open(t, t.TempDir(), storage.Limits{Bytes: 4 << 20, Files: 100})
	ctx := t.Context()
	file := func(text string) was {
		return was{aFile, int64(len(text)), sumOf([]byte(text)), "text/plain", []byte(text)}
	}
	for _, c := range []struct {
		name          string
		now           string // content of f; "-": none, "/": a folder
		before, after was
		want          string // content then, or a code
	}{
		{"a new file goes", "new", was{}, file("new"), "-"},
		{"a replaced one comes back", "new", file("old"), file("new"), "old"},
		{"a removed one comes back", "-", file("old"), was{}, "old"},
		{"a folder goes", "/", was{}, was{Kind: aFolder}, "-"},
		{"a folder comes back", "-", was{Kind: aFolder}, was{}, "/"},
		{"it is undone already", "old", file("old"), file("new"), "old"},
		{"it has changed", "other", file("old"), file("new"), string(deny.ToolConflict)},
		{"it is gone", "-", file("old"), file("new"), string(deny.ToolConflict)},
		{"it is a folder now", "/", file("old"), file("new"), string(deny.ToolConflict)},
		{"something is there again", "again", file("old"), was{}, string(deny.ToolConflict)},
		{"it has grown beyond what is compared", strings.Repeat("x", MaxUndo+1), file("old"), file("new"), string(deny.ToolConflict)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := at(t, "f")
			_ = w.Delete(ctx, "test", p, true) // it may not be there
			switch c.now {
			case "-":
			case "/":
				if _, err := w.Mkdir(ctx, "test", p); err != nil {
					t.Fatal(err)
				}
			default:
				if _, err := w.put(ctx, p, []byte(c.now)); err != nil {
					t.Fatal(err)
				}
			}
			raw, err := json.Marshal(undo{"f", c.before, c.after})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := w.Undo(ctx, "test", raw); err != nil {
				got = string(code(err))
			} else {
				is, _, err := w.now(ctx, "test", p)
				if err != nil {
					t.Fatal(err)
				}
				got = map[string]string{"": "-", aFolder: "/", aFile: string(is.Data)}[is.Kind]
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			w.agrees(t)
		})
	}
}

// FuzzUndo holds that whatever it is given, nothing but the path that is named is
// touched, and what is counted stays true.
func FuzzUndo(f *testing.F) {
	f.Add([]byte(`{"path":"f","before":{"kind":"file","size":1,"data":"eA=="},"after":{}}`))
	f.Add([]byte(`{"path":"../f","before":{"kind":"folder"},"after":{}}`))
	f.Add([]byte(`{"path":"f","before":{"kind":"file","size":-5,"data":"eA=="},"after":{"kind":""}}`))
	f.Add([]byte(`{`))
	w := open(f, f.TempDir(), storage.Limits{Bytes: 1 << 20, Files: 100})
	kept := []byte("kept")
	if _, err := w.put(f.Context(), at(f, "other"), kept); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var u undo
		if json.Unmarshal(raw, &u) == nil && strings.Contains(strings.ToLower(u.Path), "other") {
			return
		}
		_ = w.Undo(t.Context(), "test", raw) // refused, or done
		if got, err := w.get(t.Context(), at(t, "other")); err != nil || !bytes.Equal(got, kept) {
			t.Fatalf("%q, %v", got, err)
		}
		w.agrees(t)
	})
}

// meanwhile is a context that does something the first time that it is waited for.
type meanwhile struct {
	context.Context
	do func()
}

func (m *meanwhile) Done() <-chan struct{} {
	if do := m.do; do != nil {
		m.do = nil
		do()
	}
	return m.Context.Done()
}

func TestUndoLeavesWhatIsWrittenWhileItComparesAlone(t *testing.T) {
	w := open(t, t.TempDir(), roomy)
	p := at(t, "f")
	put := func(ctx context.Context, text string) {
		if _, err := w.put(ctx, p, []byte(text)); err != nil {
			t.Error(err)
		}
	}
	old := was{aFile, 3, sumOf([]byte("old")), "text/plain", []byte("old")}
	t.Run("what was there before comes back", func(t *testing.T) {
		put(t.Context(), "new")
		raw, err := json.Marshal(undo{"f", old, afterWrite([]byte("new"))})
		if err != nil {
			t.Fatal(err)
		}
		ctx := &meanwhile{t.Context(), func() { put(t.Context(), "other") }}
		if err := w.Undo(ctx, "test", raw); code(err) != deny.ToolConflict {
			t.Errorf("%v", err)
		}
		if got, err := w.get(t.Context(), p); string(got) != "other" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("there was nothing before", func(t *testing.T) {
		raw, err := json.Marshal(undo{"f", was{}, afterWrite([]byte("new"))})
		if err != nil {
			t.Fatal(err)
		}
		for range 300 { // whichever comes first, the other content is what stays
			put(t.Context(), "new")
			var both sync.WaitGroup
			both.Go(func() { put(t.Context(), "other") })
			both.Go(func() { _ = w.Undo(t.Context(), "test", raw) }) // done or refused
			both.Wait()
			if got, err := w.get(t.Context(), p); string(got) != "other" {
				t.Fatalf("%q, %v", got, err)
			}
		}
	})
	w.agrees(t)
}

// What is kept must be what the call replaced: by an older one, a rollback would take
// somebody else's change back too.
func TestAChangeThatIsKeptReplacesWhatWasKept(t *testing.T) {
	w := open(t, t.TempDir(), roomy)
	d, _ := dispatcher(t, w)
	for name, c := range map[string]struct {
		tool, input string
		meanwhile   func(Path) error
	}{
		"a file is written": {"fs_write", `{"path":"f","text":"mine"}`, func(p Path) error { _, err := w.put(t.Context(), p, []byte("theirs")); return err }},
		"a file is deleted": {"fs_delete", `{"path":"f"}`, func(p Path) error { _, err := w.put(t.Context(), p, []byte("theirs")); return err }},
		"a folder is made":  {"fs_mkdir", `{"path":"f"}`, func(p Path) error { _, err := w.Mkdir(t.Context(), "test", p); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			p := at(t, "f")
			_ = w.Delete(t.Context(), "test", p, true) // it may not be there
			if c.tool == "fs_delete" {
				if _, err := w.put(t.Context(), p, []byte("old")); err != nil {
					t.Fatal(err)
				}
			}
			ctx := tool.WithKeeper(t.Context(), func(tool.Exec, []byte) error { return c.meanwhile(p) })
			_, r := d.Call(ctx, tool.Caller{Team: "t", Agent: "a"}, c.tool, []byte(c.input))
			if r == nil || r.Code != deny.ToolConflict {
				t.Errorf("%v", r)
			}
			if c.tool == "fs_mkdir" {
				return
			}
			if got, err := w.get(t.Context(), p); string(got) != "theirs" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	w.agrees(t)
}
