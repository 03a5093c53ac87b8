package vec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
)

// picture is all vectors in the order of equally near ones, and what is counted.
func picture(t testing.TB, s *store.Store) string {
	t.Helper()
	var b strings.Builder
	if err := s.View(context.Background(), func(x *store.Tx) error {
		fmt.Fprintln(&b, x.Used())
		return x.Query("SELECT rowid, id, hex(vector), metadata, size FROM vec ORDER BY rowid", func(row []sqlite.Value) error {
			fmt.Fprintf(&b, "%v %v %v %s %v\n", row[0], row[1], row[2], row[3], row[4])
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func undoIt(s *store.Store, raw []byte) error {
	v := &Vec{s}
	return s.Update(context.Background(), func(x *store.Tx) error { return v.Undo(x, raw) })
}

func refusedAs(err error, code deny.Code) bool {
	var r *deny.Reason
	return errors.As(err, &r) && r.Code == code
}

func TestUndoRestoresVectors(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, s := start(t, 0)
		input := rapid.Custom(func(t *rapid.T) object {
			in := object{"id": rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")}
			if rapid.Bool().Draw(t, "upsert") {
				in["vector"] = []int{rapid.IntRange(1, 3).Draw(t, "x"), 1}
				in["metadata"] = object{"n": rapid.IntRange(0, 9).Draw(t, "n")}
			}
			return in
		})
		name := func(in object) string {
			if in["vector"] == nil {
				return "vec_delete"
			}
			return "vec_upsert"
		}
		for _, in := range rapid.SliceOfN(input, 0, 4).Draw(rt, "there") {
			c.Do(name(in), in)
		}
		pictures, undos := []string{picture(t, s)}, [][]byte{}
		for _, in := range rapid.SliceOfN(input, 1, 6).Draw(rt, "steps") {
			undos = append(undos, c.Step(name(in), in))
			pictures = append(pictures, picture(t, s))
		}
		for i := len(undos) - 1; i >= 0; i-- {
			for range 2 {
				if err := undoIt(s, undos[i]); err != nil {
					rt.Fatal(err)
				}
				if got := picture(t, s); got != pictures[i] {
					rt.Fatalf("step %d: before:\n%safter:\n%s", i, pictures[i], got)
				}
			}
		}
	})
}

func TestUndoOfTheSameVectorPutsItWhereItStood(t *testing.T) {
	c, s := start(t, 0)
	c.Do("vec_upsert", `{"id":"a","vector":[1,2]}`)
	c.Do("vec_upsert", `{"id":"b","vector":[1,2]}`)
	before := picture(t, s)
	undo := c.Step("vec_upsert", `{"id":"a","vector":[1,2]}`)
	if got := ids(t, c.Do("vec_query", `{"vector":[1,2]}`)); strings.Join(got, "") != "ba" {
		t.Fatal(got)
	}
	if err := undoIt(s, undo); err != nil || picture(t, s) != before {
		t.Errorf("%v\n%s", err, picture(t, s))
	}
}

func TestUndoRefusesAVectorThatChanged(t *testing.T) {
	size := int64(1 + 8 + 2 + rowCost)
	c, s := start(t, 2*size+8)
	c.Do("vec_upsert", `{"id":"a","vector":[1,2]}`)
	for _, one := range []struct {
		name, tool, input, since string
		want                     deny.Code // "": it is as it was left
	}{
		{"other numbers", "vec_upsert", `{"id":"a","vector":[3,4]}`, `{"id":"a","vector":[5,6]}`, deny.ToolConflict},
		{"other metadata", "vec_upsert", `{"id":"a","vector":[3,4]}`, `{"id":"a","vector":[3,4],"metadata":{"x":1}}`, deny.ToolConflict},
		{"the same again", "vec_upsert", `{"id":"a","vector":[3,4]}`, `{"id":"a","vector":[3,4],"metadata":{}}`, ""},
		{"there again", "vec_delete", `{"id":"a"}`, `{"id":"a","vector":[9,9]}`, deny.ToolConflict},
	} {
		undo := c.Step(one.tool, one.input)
		c.Do("vec_upsert", one.since)
		before := picture(t, s)
		err := undoIt(s, undo)
		if one.want == "" && err != nil || one.want != "" && (!refusedAs(err, one.want) || picture(t, s) != before) {
			t.Errorf("%s: %v", one.name, err)
		}
		c.Do("vec_upsert", `{"id":"a","vector":[1,2]}`)
	}
	// What is put back has to fit, in its bytes and its length.
	undo := c.Step("vec_delete", `{"id":"a"}`)
	c.Do("vec_upsert", `{"id":"b","vector":[1,2]}`)
	c.Do("vec_upsert", `{"id":"c","vector":[1,2]}`)
	if err := undoIt(s, undo); !refusedAs(err, deny.ToolQuota) {
		t.Error(err)
	}
	c.Do("vec_delete", `{"id":"b"}`)
	c.Do("vec_delete", `{"id":"c"}`)
	c.Do("vec_upsert", `{"id":"b","vector":[1]}`)
	before := picture(t, s)
	if err := undoIt(s, undo); !refusedAs(err, deny.ToolInvalid) || picture(t, s) != before {
		t.Error(err)
	}
}

// FuzzUndo holds that whatever it is given, it changes the id that is named or nothing,
// and leaves what can be searched.
func FuzzUndo(f *testing.F) {
	c, s := start(f, 0)
	c.Do("vec_upsert", `{"id":"a","vector":[1,2]}`)
	f.Add(c.Step("vec_upsert", `{"id":"a","vector":[3,4],"metadata":{"x":1}}`))
	f.Add(c.Step("vec_delete", `{"id":"a"}`))
	f.Add([]byte(`{"id":"b","before":{"vector":"AAAA","metadata":"e30="}}`))
	c.Do("vec_upsert", `{"id":"other","vector":[1,2]}`)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var u undo
		if json.Unmarshal(raw, &u) == nil && u.ID == "other" {
			return
		}
		before := picture(t, s)
		if err := undoIt(s, raw); err != nil && picture(t, s) != before {
			t.Fatal("it was refused and changed something:", err)
		}
		c := c
		c.T = t
		if got := c.Do("vec_query", `{"vector":[1,2],"limit":100}`); !strings.Contains(got, `"other"`) {
			t.Fatal(got)
		}
	})
}
