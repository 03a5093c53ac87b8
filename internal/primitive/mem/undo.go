package mem

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// held is what a key had; nil: nothing.
type held struct {
	Value   []byte `json:"value"` // JSON as it was given
	Expires int64  `json:"expires"`
}

func (h *held) same(o *held) bool {
	if h == nil || o == nil {
		return h == o
	}
	return h.Expires == o.Expires && bytes.Equal(h.Value, o.Value)
}

// at leaves out what has expired.
func (h *held) at(now int64) *held {
	if h != nil && h.Expires <= now {
		return nil
	}
	return h
}

// undo is what a call did to a key.
type undo struct {
	Key    string `json:"key"`
	Before *held  `json:"before"`
	After  *held  `json:"after"`
}

func heldOf(t *store.Tx, key string) (*held, error) {
	value, expires, ok, err := look(t, key)
	if err != nil || !ok {
		return nil, err
	}
	return &held{value, expires}, nil
}

// kept does a change of a key and, when somebody may want it back, keeps what takes it
// back in the same transaction.
func kept(ctx context.Context, t *store.Tx, key string, change func() error) error {
	keep := tool.KeeperOf(ctx)
	if keep == nil {
		return change()
	}
	u := undo{Key: key}
	var err error
	if u.Before, err = heldOf(t, key); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	if u.After, err = heldOf(t, key); err != nil {
		return err
	}
	raw, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return keep(t.Exec, raw)
}

// Undo takes a change of a key back, unless the key has changed since. Where it was
// taken back already it does nothing.
func (m *Mem) Undo(t *store.Tx, raw []byte) error {
	var u undo
	if err := json.Unmarshal(raw, &u); err != nil {
		return fmt.Errorf("mem: what takes a change back does not decode: %w", err)
	}
	now := t.Now().UnixMilli()
	current, err := heldOf(t, u.Key)
	if err != nil {
		return err
	}
	before := u.Before.at(now)
	switch {
	case current.same(before):
		return nil
	case !current.same(u.After.at(now)):
		return tool.Refuse(deny.ToolConflict, u.Key, "the key has changed since", "look at it with mem_get, and set it yourself")
	case before == nil:
		return drop(t, u.Key)
	}
	return put(t, u.Key, before.Value, before.Expires)
}
