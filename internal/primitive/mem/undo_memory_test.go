package mem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool/tooltest"
)

// memories is every version of every memory, what is found by words, and what is counted.
func memories(t testing.TB, c tooltest.Caller, s *store.Store) string {
	t.Helper()
	var b strings.Builder
	if err := s.View(context.Background(), func(x *store.Tx) error {
		return x.Query("SELECT id, key, version, content, tags, created, current, size FROM memory ORDER BY key, version", func(row []sqlite.Value) error {
			_, err := fmt.Fprintf(&b, "%v\n", row)
			return err
		})
	}); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two", "six", "red", "blue"} {
		var out struct{ Memories []Memory }
		if err := json.Unmarshal([]byte(c.Do("mem_recall", object{"query": word})), &out); err != nil {
			t.Fatal(err)
		}
		keys := map[string]int64{}
		for _, m := range out.Memories {
			keys[m.Key] = m.Version
		}
		fmt.Fprintln(&b, word, keys)
	}
	counts := usage(t, s)
	if counts[0] != counts[1] {
		t.Errorf("%d bytes are counted, and %d are there", counts[0], counts[1])
	}
	fmt.Fprintln(&b, counts)
	return b.String()
}

func undoMemoryIt(s *store.Store, raw []byte) error {
	m := &Mem{s}
	return s.Update(context.Background(), func(x *store.Tx) error { return m.UndoMemory(x, raw) })
}

func TestUndoRestoresMemories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, s, clock := start(t, 0)
		input := rapid.Custom(func(t *rapid.T) object {
			in := object{"key": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")}
			if rapid.IntRange(0, 3).Draw(t, "kind") > 0 {
				in["content"] = rapid.SampledFrom([]string{"one", "two", "six", "one two"}).Draw(t, "content")
				in["tags"] = rapid.SampledFrom([][]string{nil, {"red"}, {"blue", "red"}}).Draw(t, "tags")
			}
			return in
		})
		name := func(in object) string {
			clock.add(time.Second)
			if in["content"] == nil {
				return "mem_forget"
			}
			if in["tags"].([]string) == nil {
				delete(in, "tags")
			}
			return "mem_remember"
		}
		for range rapid.SampledFrom([]int{0, 1, 19, 20, 30}).Draw(rt, "versions") {
			c.Do("mem_remember", `{"key":"a","content":"six"}`)
		}
		for _, in := range rapid.SliceOfN(input, 0, 4).Draw(rt, "there") {
			c.Do(name(in), in)
		}
		pictures, undos := []string{memories(t, c, s)}, [][]byte{}
		for _, in := range rapid.SliceOfN(input, 1, 6).Draw(rt, "steps") {
			undos = append(undos, c.Step(name(in), in))
			pictures = append(pictures, memories(t, c, s))
		}
		for i := len(undos) - 1; i >= 0; i-- {
			for range 2 {
				if err := undoMemoryIt(s, undos[i]); err != nil {
					rt.Fatal(err)
				}
				if got := memories(t, c, s); got != pictures[i] {
					rt.Fatalf("step %d: %s\nbefore:\n%safter:\n%s", i, undos[i], pictures[i], got)
				}
			}
		}
	})
}

func TestUndoRefusesAMemoryThatChanged(t *testing.T) {
	c, s, clock := start(t, 4096)
	refused := func(name string, undo []byte, code deny.Code) {
		t.Helper()
		before := memories(t, c, s)
		var r *deny.Reason
		if err := undoMemoryIt(s, undo); !errors.As(err, &r) || r.Code != code {
			t.Errorf("%s: %v", name, err)
		}
		if got := memories(t, c, s); got != before {
			t.Errorf("%s: it changed something:\n%s\n%s", name, before, got)
		}
	}
	c.Do("mem_remember", `{"key":"k","content":"one"}`)
	undo := c.Step("mem_remember", `{"key":"k","content":"two"}`)
	c.Do("mem_remember", `{"key":"k","content":"two"}`)
	refused("a version since", undo, deny.ToolConflict)
	undo = c.Step("mem_forget", `{"key":"k"}`)
	c.Do("mem_remember", `{"key":"k","content":"six"}`)
	refused("there again", undo, deny.ToolConflict)
	c.Do("mem_forget", `{"key":"k"}`)
	clock.add(time.Hour)
	c.Do("mem_set", object{"key": "fills", "value": strings.Repeat("x", 3900)})
	refused("no room", undo, deny.ToolQuota)
	c.Do("mem_delete", `{"key":"fills"}`)
	if err := undoMemoryIt(s, undo); err != nil {
		t.Error(err)
	}
}

// FuzzUndoMemory holds that whatever it is given, it changes the key that is named or
// nothing, and counts what is there.
func FuzzUndoMemory(f *testing.F) {
	c, s, _ := start(f, 0)
	c.Do("mem_remember", `{"key":"k","content":"one","tags":["red"]}`)
	f.Add(c.Step("mem_remember", `{"key":"k","content":"two"}`))
	f.Add(c.Step("mem_forget", `{"key":"k"}`))
	f.Add([]byte(`{"key":"k","before":[{"n":1,"sum":"","content":"eA=="}]}`))
	c.Do("mem_remember", `{"key":"other","content":"blue"}`)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var u undoMemory
		if json.Unmarshal(raw, &u) == nil && u.Key == "other" {
			return
		}
		c := c
		c.T = t
		before := memories(t, c, s)
		err := undoMemoryIt(s, raw)
		after := memories(t, c, s)
		if err != nil && after != before || !strings.Contains(after, "blue map[other:1]") {
			t.Fatalf("%v\n%s", err, after)
		}
	})
}
