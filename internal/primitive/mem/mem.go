// Package mem is an agent's memory: values by key with a time to live, counters,
// and memories in words that are found again by their text and tags.
//
// All of it lies in the agent's own system.db (internal/store) and counts
// towards its one quota: a value by its key, its JSON and entryCost, a version
// of a memory by its key, content, tags and entryCost. Overwriting, deleting and
// expiring give back in the same transaction. A value that has expired is never
// shown; its bytes come back with the next sweep, or when they are needed.
//
// Nothing is kept anywhere else: an agent that is removed takes its memory with
// it.
package mem

import (
	"context"
	"regexp"

	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// Times to live, in seconds.
const (
	maxTTL     = 30 * 24 * 3600
	defaultTTL = 7 * 24 * 3600
)

// Bounds.
const (
	maxKey     = 512
	maxPrefix  = 256
	maxValue   = 4 << 20 // bytes of JSON
	maxListed  = 1000
	entryCost  = 64
	sweepBatch = 256
)

var keyPattern = regexp.MustCompile(`[A-Za-z0-9_:.\-/]+`)

// Mem is the memory of one agent.
type Mem struct{ store *store.Store }

// Open makes the tables and has them swept.
func Open(ctx context.Context, s *store.Store) (*Mem, error) {
	m := &Mem{s}
	if err := s.Migrate(ctx, "mem", schema); err != nil {
		return nil, err
	}
	s.Expire(expire)
	return m, nil
}

var schema = [][]string{{
	`CREATE TABLE mem (
		key     TEXT PRIMARY KEY,
		value   BLOB NOT NULL,    -- JSON as it was given
		size    INTEGER NOT NULL, -- that counts towards the quota
		expires INTEGER NOT NULL  -- ms since 1970
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX mem_expires ON mem (expires)`,
	`CREATE TABLE memory (
		id      INTEGER PRIMARY KEY,
		key     TEXT NOT NULL,
		version INTEGER NOT NULL, -- from 1
		content TEXT NOT NULL,
		tags    TEXT NOT NULL,    -- JSON, an array of texts
		created INTEGER NOT NULL, -- ms since 1970
		current INTEGER NOT NULL, -- 1: the newest of its key, which recall finds
		size    INTEGER NOT NULL,
		UNIQUE (key, version)
	) STRICT`,
	`CREATE INDEX memory_current ON memory (created) WHERE current = 1`,
	`CREATE VIRTUAL TABLE memory_text USING fts5 (content, key, tags, content='', contentless_delete=1, tokenize='porter unicode61 remove_diacritics 2')`,
}}

// Tools are the tools of the group.
func (m *Mem) Tools() []tool.Tool {
	key := tool.Field{
		Name: "key", Type: tool.String, Required: true, Min: 1, Max: maxKey, Shown: true, Doc: "The name of the value",
		Pattern: keyPattern, PatternDoc: "a key has letters, digits and _ : . - / only",
	}
	seconds := func(name string) tool.Field {
		return tool.Field{Name: name, Type: tool.Integer, Min: 1, Max: maxTTL, Doc: "Seconds until it is forgotten"}
	}
	ttl := seconds("ttl")
	ttl.Default, ttl.Doc = int64(defaultTTL), ttl.Doc+"; 7 days by default, 30 at most"
	until := seconds("seconds")
	until.Required, until.Aliases = true, []string{"ttl"}
	all := []tool.Tool{
		{
			Name: "mem_set", Effect: true, Run: m.set, MaxInput: maxValue + 64<<10,
			Summary: "Remember a JSON value under a key. What was there before is replaced.",
			Fields:  []tool.Field{key, {Name: "value", Type: tool.Any, Required: true, Max: maxValue, Doc: "Any JSON value"}, ttl},
		},
		{Name: "mem_get", Run: m.get, Summary: "Give the value of a key; null when there is none.", Fields: []tool.Field{key}},
		{Name: "mem_delete", Effect: true, Run: m.remove, Summary: "Forget the value of a key.", Fields: []tool.Field{key}},
		{
			Name: "mem_list", Run: m.list, Summary: "List keys that begin with a prefix, in order, at most 1000.",
			Fields: []tool.Field{
				{
					Name: "prefix", Type: tool.String, Max: maxPrefix, Default: "", Shown: true, Doc: "What the keys begin with; empty: all",
					Pattern: regexp.MustCompile(`[A-Za-z0-9_:.\-/]*`), PatternDoc: key.PatternDoc,
				},
				{Name: "after", Type: tool.String, Max: maxKey, Default: "", Shown: true, Doc: "The last key of the page before"},
			},
		},
		{
			Name: "mem_incr", Effect: true, Run: m.incr, Summary: "Add to the integer under a key, which begins at 0, and give the sum. Atomic.",
			Fields: []tool.Field{key, {Name: "amount", Aliases: []string{"by"}, Type: tool.Integer, Default: int64(1), Doc: "What is added; may be negative"}},
		},
		{Name: "mem_expire", Effect: true, Run: m.expire, Summary: "Have a key forgotten after some seconds from now.", Fields: []tool.Field{key, until}},
	}
	all = append(all, m.memories()...)
	for i := range all {
		all[i].Group = tool.Memory
	}
	return all
}
