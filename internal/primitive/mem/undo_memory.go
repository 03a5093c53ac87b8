package mem

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// version is one version of a memory. Versions are the same when their sums are.
type version struct {
	N   int64  `json:"n"`
	Sum []byte `json:"sum"` // SHA-256 of what it says and when it was made

	// Of those that a call took away alone.
	ID      int64  `json:"id,omitempty"` // orders those of the same time
	Created int64  `json:"created,omitempty"`
	Content []byte `json:"content,omitempty"`
	Tags    []byte `json:"tags,omitempty"` // JSON, an array of texts
}

func (v version) same(o version) bool { return v.N == o.N && bytes.Equal(v.Sum, o.Sum) }

// undoMemory is what a call did to the versions of a key, the oldest first.
type undoMemory struct {
	Key    string    `json:"key"`
	Before []version `json:"before"`
	After  []version `json:"after"`
}

func versionsOf(t *store.Tx, key string) (out []version, err error) {
	err = t.Query("SELECT version, id, created, content, tags FROM memory WHERE key = ? ORDER BY version", func(row []sqlite.Value) error {
		v := version{N: sqlite.Int(row[0]), ID: sqlite.Int(row[1]), Created: sqlite.Int(row[2]), Content: sqlite.Blob(row[3]), Tags: sqlite.Blob(row[4])}
		v.Sum = v.sum()
		out = append(out, v)
		return nil
	}, key)
	return out, err
}

func (v version) sum() []byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d %d %d\n", v.Created, len(v.Content), len(v.Tags)) // a hash never fails
	_, _ = h.Write(v.Content)
	_, _ = h.Write(v.Tags)
	return h.Sum(nil)
}

// bare leaves out of list what versions say that others have, too; nil: of all.
func bare(list, others []version) []version {
	out := slices.Clone(list)
	for i, v := range out {
		if others == nil || slices.ContainsFunc(others, v.same) {
			out[i] = version{N: v.N, Sum: v.Sum}
		}
	}
	return out
}

// keptMemory does a change of a memory and, when somebody may want it back, keeps what
// takes it back in the same transaction.
func keptMemory(ctx context.Context, t *store.Tx, key string, change func() error) error {
	keep := tool.KeeperOf(ctx)
	if keep == nil {
		return change()
	}
	before, err := versionsOf(t, key)
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	after, err := versionsOf(t, key)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(undoMemory{key, bare(before, append([]version{}, after...)), bare(after, nil)})
	if err != nil {
		return err
	}
	return keep(t.Exec, raw)
}

// UndoMemory takes a change of a memory back with its history, unless there is another
// version since. Where it was taken back already it does nothing.
func (m *Mem) UndoMemory(t *store.Tx, raw []byte) error {
	var u undoMemory
	if err := json.Unmarshal(raw, &u); err != nil {
		return fmt.Errorf("mem: what takes a change back does not decode: %w", err)
	}
	if u.Key == "" || len(u.Before) > maxVersions || !slices.IsSortedFunc(u.Before, func(a, b version) int { return cmp.Compare(a.N, b.N) }) {
		return errors.New("mem: what takes a change of a memory back is none")
	}
	current, err := versionsOf(t, u.Key)
	switch {
	case err != nil:
		return err
	case slices.EqualFunc(current, u.Before, version.same):
		return nil
	case !slices.EqualFunc(current, u.After, version.same):
		return tool.Refuse(deny.ToolConflict, u.Key, "the memory has changed since", "look at it with mem_history, and put it right yourself")
	}
	if err := outdate(t, u.Key); err != nil {
		return err
	}
	for _, v := range current {
		if slices.ContainsFunc(u.Before, v.same) {
			continue
		}
		if err := discharge(t, "DELETE FROM memory WHERE key = ? AND version = ? RETURNING size", u.Key, v.N); err != nil {
			return err
		}
	}
	for _, v := range u.Before {
		if slices.ContainsFunc(current, v.same) {
			continue
		}
		if err := v.back(t, u.Key); err != nil {
			return err
		}
	}
	return renew(t, u.Key)
}

// back puts a version back as it was.
func (v version) back(t *store.Tx, key string) error {
	if v.N <= 0 || !bytes.Equal(v.sum(), v.Sum) {
		return fmt.Errorf("mem: version %d of %q is not what was kept", v.N, key)
	}
	size := sizeOf(key, string(v.Content), string(v.Tags))
	if err := t.Charge(size); err != nil {
		return err
	}
	_, err := t.Exec("INSERT INTO memory (id, key, version, content, tags, created, current, size)"+
		" VALUES (CASE WHEN ?1 > 0 AND NOT EXISTS (SELECT 1 FROM memory WHERE id = ?1) THEN ?1 END, ?2, ?3, ?4, ?5, ?6, 0, ?7)",
		v.ID, key, v.N, string(v.Content), string(v.Tags), v.Created, size)
	return err
}

// renew has recall find the newest version of a key, if there is one.
func renew(t *store.Tx, key string) error {
	id, content, tags := int64(0), "", []byte(nil)
	err := t.Query("SELECT id, content, tags FROM memory WHERE key = ? ORDER BY version DESC LIMIT 1", func(row []sqlite.Value) error {
		id, content, tags = sqlite.Int(row[0]), sqlite.Text(row[1]), sqlite.Blob(row[2])
		return nil
	}, key)
	if err != nil || id == 0 {
		return err
	}
	var words []string
	if err := json.Unmarshal(tags, &words); err != nil {
		return fmt.Errorf("mem: the tags of %q: %w", key, err)
	}
	if _, err := t.Exec("UPDATE memory SET current = 1 WHERE id = ?", id); err != nil {
		return err
	}
	_, err = t.Exec("INSERT INTO memory_text (rowid, content, key, tags) VALUES (?, ?, ?, ?)", id, content, key, strings.Join(words, " "))
	return err
}
