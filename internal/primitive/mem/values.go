package mem

import (
	"context"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// Entry is a key and its value; null: there is none.
type Entry struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// put replaces what is under a key, and counts it. The old row goes first:
// making room may let go of it too, and its bytes must come back once.
func put(t *store.Tx, key string, value []byte, expires int64) error {
	if err := drop(t, key); err != nil {
		return err
	}
	size := int64(len(key) + len(value) + entryCost)
	if err := t.Charge(size); err != nil {
		return err
	}
	_, err := t.Exec("INSERT INTO mem (key, value, size, expires) VALUES (?, ?, ?, ?)", key, value, size, expires)
	return err
}

// drop deletes a key, if it is there, and gives its bytes back.
func drop(t *store.Tx, key string) error {
	size, err := t.Int("SELECT size FROM mem WHERE key = ?", key)
	if err != nil || size == 0 {
		return err
	}
	if _, err := t.Exec("DELETE FROM mem WHERE key = ?", key); err != nil {
		return err
	}
	return t.Charge(-size)
}

// look gives a value that has not expired; ok: there is one.
func look(t *store.Tx, key string) (value []byte, expires int64, ok bool, err error) {
	err = t.Query("SELECT value, expires FROM mem WHERE key = ? AND expires > ?", func(row []sqlite.Value) error {
		value, expires, ok = sqlite.Blob(row[0]), sqlite.Int(row[1]), true
		return nil
	}, key, t.Now().UnixMilli())
	return value, expires, ok, err
}

func in(t *store.Tx, seconds int64) int64 {
	return t.Now().Add(time.Duration(seconds) * time.Second).UnixMilli()
}

func (m *Mem) set(ctx context.Context, c *tool.Call) (any, error) {
	key := c.In.String("key")
	err := m.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		return kept(ctx, t, key, func() error { return put(t, key, c.In.Raw("value"), in(t, c.In.Int("ttl"))) })
	})
	return map[string]string{"key": key}, err
}

func (m *Mem) get(ctx context.Context, c *tool.Call) (any, error) {
	e := Entry{Key: c.In.String("key")}
	err := m.store.View(ctx, func(t *store.Tx) (err error) {
		e.Value, _, _, err = look(t, e.Key)
		return err
	})
	return e, err
}

func (m *Mem) remove(ctx context.Context, c *tool.Call) (any, error) {
	key, there := c.In.String("key"), false
	err := m.store.Update(ctx, func(t *store.Tx) (err error) {
		t.Record(c.Take())
		if _, _, there, err = look(t, key); err != nil {
			return err
		}
		return kept(ctx, t, key, func() error { return drop(t, key) })
	})
	return map[string]any{"key": key, "deleted": there}, err
}

func (m *Mem) list(ctx context.Context, c *tool.Call) (any, error) {
	prefix, keys := c.In.String("prefix"), []string{}
	err := m.store.View(ctx, func(t *store.Tx) error {
		// No key has a character above ~.
		return t.Query("SELECT key FROM mem WHERE key >= ? AND key < ? AND key > ? AND expires > ? ORDER BY key LIMIT ?", func(row []sqlite.Value) error {
			keys = append(keys, sqlite.Text(row[0]))
			return nil
		}, prefix, prefix+"\x7f", c.In.String("after"), t.Now().UnixMilli(), maxListed+1)
	})
	more := len(keys) > maxListed
	return map[string]any{"keys": keys[:min(len(keys), maxListed)], "more": more}, err
}

func (m *Mem) incr(ctx context.Context, c *tool.Call) (any, error) {
	key, amount, sum := c.In.String("key"), c.In.Int("amount"), int64(0)
	err := m.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		old, expires, there, err := look(t, key)
		if err != nil {
			return err
		}
		if !there {
			old, expires = []byte("0"), in(t, defaultTTL)
		}
		n, err := strconv.ParseInt(string(old), 10, 64)
		if err != nil {
			return tool.Refuse(deny.ToolConflict, "mem_incr "+key, "what is there is not an integer", "use another key, or mem_set this one to a number first")
		}
		if amount > 0 && n > math.MaxInt64-amount || amount < 0 && n < math.MinInt64-amount {
			return tool.Refuse(deny.ToolConflict, "mem_incr "+key, "the sum would not fit into 64 bits", "mem_set it to a smaller number")
		}
		sum = n + amount
		return kept(ctx, t, key, func() error { return put(t, key, strconv.AppendInt(nil, sum, 10), expires) })
	})
	return map[string]any{"key": key, "value": sum}, err
}

func (m *Mem) expire(ctx context.Context, c *tool.Call) (any, error) {
	key, set := c.In.String("key"), false
	err := m.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		return kept(ctx, t, key, func() error {
			n, err := t.Exec("UPDATE mem SET expires = ? WHERE key = ? AND expires > ?", in(t, c.In.Int("seconds")), key, t.Now().UnixMilli())
			set = n > 0
			return err
		})
	})
	return map[string]any{"key": key, "set": set}, err
}

// expire lets go of some values that have expired.
func expire(t *store.Tx) (more bool, err error) {
	n, size := 0, int64(0)
	err = t.Query("DELETE FROM mem WHERE key IN (SELECT key FROM mem WHERE expires <= ? LIMIT ?) RETURNING size", func(row []sqlite.Value) error {
		n++
		size += sqlite.Int(row[0])
		return nil
	}, t.Now().UnixMilli(), sweepBatch)
	if err != nil {
		return false, err
	}
	return n == sweepBatch, t.Charge(-size)
}
