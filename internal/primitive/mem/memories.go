package mem

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode"

	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// Bounds of memories.
const (
	maxName     = 256
	maxContent  = 100_000 // characters
	maxTags     = 50
	maxTag      = 64
	maxVersions = 20 // of one key; older ones give way
	maxRecalled = 100
	maxGiven    = 4 << 20 // bytes of memories in one answer; one memory at least
	maxTerms    = 64      // of a query
)

func (m *Mem) memories() []tool.Tool {
	key := tool.Field{Name: "key", Type: tool.String, Required: true, Min: 1, Max: maxName, Shown: true, Doc: "The name of the memory"}
	tags := tool.Field{Name: "tags", Type: tool.Array, Max: maxTags, Items: &tool.Field{Type: tool.String, Min: 1, Max: maxTag, Shown: true}}
	said, wanted := tags, tags
	said.Doc, wanted.Doc = "Words to find it by", "Only memories that have all of these"
	limit := tool.Field{Name: "limit", Type: tool.Integer, Min: 1, Max: maxRecalled, Default: int64(10), Doc: "How many at most"}
	return []tool.Tool{
		{
			Name: "mem_remember", Effect: true, Run: m.remember, MaxInput: 8*maxContent + 64<<10,
			Summary: "Keep a memory in words, to be found by its text and tags. The same key again makes a new version.",
			Fields:  []tool.Field{key, {Name: "content", Type: tool.String, Required: true, Min: 1, Max: maxContent, Doc: "The memory"}, said},
		},
		{
			Name: "mem_recall", Run: m.recall, Summary: "Find memories by words and tags, best first; without words the newest first.",
			Fields: []tool.Field{{Name: "query", Type: tool.String, Max: 4096, Default: "", Doc: "Words; any of them may match"}, wanted, limit},
		},
		{Name: "mem_forget", Effect: true, Run: m.forget, Summary: "Forget a memory with all its versions.", Fields: []tool.Field{key}},
		{Name: "mem_history", Run: m.history, Summary: "Give the versions of a memory, newest first; the last 20 are kept.", Fields: []tool.Field{key, limit}},
	}
}

// Memory is one version of a memory.
type Memory struct {
	Key     string          `json:"key,omitempty"`
	Version int64           `json:"version"`
	Content string          `json:"content"`
	Tags    json.RawMessage `json:"tags"` // array of texts
	Created string          `json:"createdAt"`
	Score   float64         `json:"score,omitempty"` // of a query with words; more is better
}

func (m *Mem) remember(ctx context.Context, c *tool.Call) (any, error) {
	key, content, version := c.In.String("key"), c.In.String("content"), int64(0)
	words := c.In.Strings("tags")
	if words == nil {
		words = []string{}
	}
	tags, err := json.Marshal(words)
	if err != nil {
		return nil, err
	}
	err = m.store.Update(ctx, func(t *store.Tx) (err error) {
		t.Record(c.Take())
		return keptMemory(ctx, t, key, func() error {
			version, err = add(t, key, content, string(tags), words)
			return err
		})
	})
	return map[string]any{"key": key, "version": version}, err
}

// add makes a new version of a memory and says which.
func add(t *store.Tx, key, content, tags string, words []string) (version int64, err error) {
	if version, err = t.Int("SELECT coalesce(max(version), 0) FROM memory WHERE key = ?", key); err != nil {
		return 0, err
	}
	version++
	if err := outdate(t, key); err != nil {
		return 0, err
	}
	if err := discharge(t, "DELETE FROM memory WHERE key = ? AND version <= ? RETURNING size", key, version-maxVersions); err != nil {
		return 0, err
	}
	size := sizeOf(key, content, tags)
	if err := t.Charge(size); err != nil {
		return 0, err
	}
	if _, err := t.Exec("INSERT INTO memory (key, version, content, tags, created, current, size) VALUES (?, ?, ?, ?, ?, 1, ?)",
		key, version, content, tags, t.Now().UnixMilli(), size); err != nil {
		return 0, err
	}
	_, err = t.Exec("INSERT INTO memory_text (rowid, content, key, tags) VALUES (last_insert_rowid(), ?, ?, ?)", content, key, strings.Join(words, " "))
	return version, err
}

func sizeOf(key, content, tags string) int64 {
	return int64(len(key) + len(content) + len(tags) + entryCost)
}

// outdate has recall find no version of a key any more.
func outdate(t *store.Tx, key string) error {
	if _, err := t.Exec("DELETE FROM memory_text WHERE rowid IN (SELECT id FROM memory WHERE key = ? AND current = 1)", key); err != nil {
		return err
	}
	_, err := t.Exec("UPDATE memory SET current = 0 WHERE key = ? AND current = 1", key)
	return err
}

// discharge runs a DELETE that returns sizes, and gives them back.
func discharge(t *store.Tx, sql string, args ...any) error {
	size := int64(0)
	if err := t.Query(sql, func(row []sqlite.Value) error { size += sqlite.Int(row[0]); return nil }, args...); err != nil {
		return err
	}
	return t.Charge(-size)
}

// tagged says that a memory has every tag of a JSON array.
const tagged = "NOT EXISTS (SELECT 1 FROM json_each(?) w WHERE w.value NOT IN (SELECT value FROM json_each(m.tags)))"

func (m *Mem) recall(ctx context.Context, c *tool.Call) (any, error) {
	words := c.In.Strings("tags")
	if words == nil {
		words = []string{}
	}
	tags, err := json.Marshal(words)
	if err != nil {
		return nil, err
	}
	found := some{list: []Memory{}}
	row := found.add
	text, limit := c.In.String("query"), c.In.Int("limit")
	err = m.store.View(ctx, func(t *store.Tx) error {
		if strings.TrimSpace(text) == "" {
			return t.Query("SELECT m.key, m.version, m.content, m.tags, m.created, 0 FROM memory m WHERE m.current = 1 AND "+tagged+
				" ORDER BY m.created DESC, m.id DESC LIMIT ?", row, string(tags), limit)
		}
		match := terms(text)
		if match == "" {
			return nil // no word can match
		}
		return t.Query("SELECT m.key, m.version, m.content, m.tags, m.created, -bm25(memory_text, 1, 4, 3) FROM memory_text JOIN memory m ON m.id = memory_text.rowid"+
			" WHERE memory_text MATCH ? AND "+tagged+" ORDER BY bm25(memory_text, 1, 4, 3), m.id DESC LIMIT ?", row, match, string(tags), limit)
	})
	return found.answer("memories", map[string]any{}, err)
}

// some are memories up to the bytes that one answer has.
type some struct {
	list  []Memory
	bytes int
	more  bool
}

// errEnough ends a reading.
var errEnough = errors.New("mem: enough was read")

func (s *some) add(row []sqlite.Value) error {
	m := memory(row)
	if s.bytes += len(m.Content) + len(m.Tags); s.bytes > maxGiven && len(s.list) > 0 {
		s.more = true
		return errEnough
	}
	s.list = append(s.list, m)
	return nil
}

// answer names the list, and says when there were more than it holds.
func (s *some) answer(name string, out map[string]any, err error) (any, error) {
	if errors.Is(err, errEnough) {
		err = nil
	}
	if out[name] = s.list; s.more {
		out["more"] = true
	}
	return out, err
}

// terms makes a query of FTS5 from words: each of them as a text, any of which
// may match. Nothing that a caller writes is syntax.
func terms(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r) })
	for i, w := range words {
		words[i] = `"` + w + `"`
	}
	return strings.Join(words[:min(len(words), maxTerms)], " OR ")
}

func memory(row []sqlite.Value) Memory {
	return Memory{
		Key: sqlite.Text(row[0]), Version: sqlite.Int(row[1]), Content: sqlite.Text(row[2]), Tags: sqlite.Blob(row[3]),
		Created: time.UnixMilli(sqlite.Int(row[4])).UTC().Format(time.RFC3339Nano), Score: sqlite.Float(row[5]),
	}
}

func (m *Mem) forget(ctx context.Context, c *tool.Call) (any, error) {
	key, there := c.In.String("key"), false
	err := m.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		return keptMemory(ctx, t, key, func() error {
			n, err := t.Int("SELECT count(*) FROM memory WHERE key = ?", key)
			there = n > 0
			if err != nil {
				return err
			}
			if err := outdate(t, key); err != nil {
				return err
			}
			return discharge(t, "DELETE FROM memory WHERE key = ? RETURNING size", key)
		})
	})
	return map[string]any{"key": key, "forgotten": there}, err
}

func (m *Mem) history(ctx context.Context, c *tool.Call) (any, error) {
	key, versions := c.In.String("key"), some{list: []Memory{}}
	err := m.store.View(ctx, func(t *store.Tx) error {
		return t.Query("SELECT '', version, content, tags, created, 0 FROM memory WHERE key = ? ORDER BY version DESC LIMIT ?", versions.add, key, c.In.Int("limit"))
	})
	return versions.answer("versions", map[string]any{"key": key}, err)
}
