package vec

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// held is what an id has; nil: nothing.
type held struct {
	Vector   []byte `json:"vector"` // as [encode] makes it
	Metadata []byte `json:"metadata"`
	Row      int64  `json:"row,omitempty"` // see [put]
}

func (h *held) same(o *held) bool {
	if h == nil || o == nil {
		return h == o
	}
	return bytes.Equal(h.Vector, o.Vector) && bytes.Equal(h.Metadata, o.Metadata)
}

// undo is what a call did to an id.
type undo struct {
	ID     string `json:"id"`
	Before *held  `json:"before"`
	After  *held  `json:"after"`
}

func heldOf(t *store.Tx, id string) (h *held, err error) {
	err = t.Query("SELECT vector, metadata, rowid FROM vec WHERE id = ?", func(row []sqlite.Value) error {
		h = &held{sqlite.Blob(row[0]), sqlite.Blob(row[1]), sqlite.Int(row[2])}
		return nil
	}, id)
	return h, err
}

// kept does a change of an id and, when somebody may want it back, keeps what takes it
// back in the same transaction.
func kept(ctx context.Context, t *store.Tx, id string, change func() error) error {
	keep := tool.KeeperOf(ctx)
	if keep == nil {
		return change()
	}
	u := undo{ID: id}
	var err error
	if u.Before, err = heldOf(t, id); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	if u.After, err = heldOf(t, id); err != nil {
		return err
	}
	raw, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return keep(t.Exec, raw)
}

// Undo takes a change of an id back, unless the id has changed since. Where it was taken
// back already it does nothing.
func (v *Vec) Undo(t *store.Tx, raw []byte) error {
	var u undo
	if err := json.Unmarshal(raw, &u); err != nil {
		return fmt.Errorf("vec: what takes a change back does not decode: %w", err)
	}
	if n := len(u.ID); n == 0 || n > 4*maxID {
		return fmt.Errorf("vec: what takes a change back has an id of %d bytes", n)
	}
	if b := u.Before; b != nil && (len(b.Vector) == 0 || len(b.Vector)%4 != 0 || len(b.Vector) > 4*maxDimensions || !json.Valid(b.Metadata)) {
		return fmt.Errorf("vec: what takes a change of %q back is no vector", u.ID)
	}
	current, err := heldOf(t, u.ID)
	switch {
	case err != nil:
		return err
	// The same vector again is the same, and stands behind all: it goes back to where it stood.
	case current.same(u.Before) && (current == nil || current.Row == u.Before.Row || !current.same(u.After)):
		return nil
	case !current.same(u.After):
		return tool.Refuse(deny.ToolConflict, u.ID, "the vector has changed since", "look at it with vec_query, and put it right yourself")
	}
	if _, err := drop(t, u.ID); err != nil || u.Before == nil {
		return err
	}
	return put(t, u.ID, u.ID, u.Before)
}
