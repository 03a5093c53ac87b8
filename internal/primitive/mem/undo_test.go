package mem

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
)

func TestUndoLooksAtTheTimeToLiveToo(t *testing.T) {
	caller, s, c := start(t, 0)
	m := &Mem{s}
	now := func() int64 { return c.Now().UnixMilli() }
	caller.Do("mem_set", `{"key":"k","value":2,"ttl":100}`)
	after := &held{[]byte("2"), now() + 100_000}
	try := func(u undo) error {
		t.Helper()
		raw, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		return s.Update(t.Context(), func(tx *store.Tx) error { return m.Undo(tx, raw) })
	}
	refused := func(err error) bool {
		var r *deny.Reason
		return errors.As(err, &r) && r.Code == deny.ToolConflict
	}
	if err := try(undo{"k", &held{[]byte("1"), now() + 5000}, &held{[]byte("2"), now() + 99_999}}); !refused(err) {
		t.Errorf("another time to live: %v", err)
	}
	if err := try(undo{"k", &held{[]byte("1"), now() + 5000}, after}); err != nil {
		t.Error(err)
	}
	if got := caller.Do("mem_get", `{"key":"k"}`); got != `{"key":"k","value":1}` {
		t.Error(got)
	}
	// What had expired meanwhile is not brought back.
	caller.Do("mem_set", `{"key":"k","value":2,"ttl":100}`)
	was := &held{[]byte("1"), now() + 1000}
	after = &held{[]byte("2"), now() + 100_000}
	c.add(2 * time.Second)
	if err := try(undo{"k", was, after}); err != nil {
		t.Error(err)
	}
	if got := caller.Do("mem_get", `{"key":"k"}`); got != `{"key":"k","value":null}` {
		t.Error(got)
	}
	if used(t, s) != 0 {
		t.Errorf("%d bytes are still counted", used(t, s))
	}
}

func used(t *testing.T, s *store.Store) (n int64) {
	t.Helper()
	if err := s.View(t.Context(), func(tx *store.Tx) error { n = tx.Used(); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// FuzzUndo holds that whatever it is given, it changes the key that is named or nothing.
func FuzzUndo(f *testing.F) {
	f.Add([]byte(`{"key":"k","before":null,"after":{"value":"MQ==","expires":1}}`))
	f.Add([]byte(`{"key":"k","before":{"value":"MQ==","expires":99999999999999},"after":null}`))
	f.Add([]byte(`[]`))
	caller, s, _ := start(f, 0)
	m := &Mem{s}
	caller.Do("mem_set", `{"key":"other","value":1}`)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var u undo
		if json.Unmarshal(raw, &u) == nil && u.Key == "other" {
			return
		}
		caller := caller
		caller.T = t
		_ = s.Update(t.Context(), func(tx *store.Tx) error { return m.Undo(tx, raw) }) // refused, or done
		if got := caller.Do("mem_get", `{"key":"other"}`); got != `{"key":"other","value":1}` {
			t.Fatal(got)
		}
	})
}
