package fs

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/storage"
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
