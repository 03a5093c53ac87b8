// Package vec is an agent's vectors: a table of its own in the agent's own
// system.db, searched by sqlite-vec. No two agents share one.
//
// A search compares the question with every vector there is (sqlite-vec's own
// distance functions, no index that could miss one): the answer is exact, and
// its time grows with the table, which the agent's quota bounds. The number of
// dimensions is that of the first vector, until the table is empty again.
//
// A vector counts towards the quota by its id, its metadata, 4 bytes for each
// dimension and rowCost.
package vec

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"

	_ "modernc.org/sqlite/vec" // makes sqlite-vec part of every connection

	"bulkhead/internal/deny"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// Bounds.
const (
	maxDimensions = 4096
	maxID         = 256
	maxMetadata   = 16 << 10
	maxMatches    = 100
	rowCost       = 64
)

// Vec is the vectors of one agent.
type Vec struct{ store *store.Store }

// Open makes the table.
func Open(ctx context.Context, s *store.Store) (*Vec, error) {
	return &Vec{s}, s.Migrate(ctx, "vec", [][]string{{
		`CREATE TABLE vec (
			id       TEXT PRIMARY KEY,
			vector   BLOB NOT NULL,    -- float32, little endian
			metadata BLOB NOT NULL,    -- JSON
			size     INTEGER NOT NULL  -- that counts towards the quota
		) STRICT`,
	}})
}

// Tools are the tools of the group.
func (v *Vec) Tools() []tool.Tool {
	id := tool.Field{Name: "id", Type: tool.String, Required: true, Min: 1, Max: maxID, Shown: true, Doc: "The name of the vector"}
	vector := tool.Field{Name: "vector", Aliases: []string{"embedding"}, Type: tool.Array, Required: true, Min: 1, Max: maxDimensions, Items: &tool.Field{Type: tool.Number}}
	kept, asked := vector, vector
	kept.Doc = "Numbers; every vector has as many as the first one"
	asked.Doc = "What the vectors are compared with"
	all := []tool.Tool{
		{
			Name: "vec_upsert", Effect: true, Run: v.upsert, Summary: "Keep a vector with some metadata under an id. What was there before is replaced.",
			Fields: []tool.Field{id, kept, {Name: "metadata", Type: tool.Object, Max: maxMetadata, Doc: "A JSON object that comes back with a match"}},
		},
		{
			Name: "vec_query", Run: v.query, Summary: "Find the vectors that are nearest to one, nearest first.",
			Fields: []tool.Field{
				asked,
				{Name: "limit", Aliases: []string{"k", "topK"}, Type: tool.Integer, Min: 1, Max: maxMatches, Default: int64(10), Doc: "How many at most"},
				{Name: "metric", Type: tool.String, Enum: []string{"cosine", "l2"}, Default: "cosine", Shown: true, Doc: "How distance is measured"},
			},
		},
		{Name: "vec_delete", Effect: true, Run: v.remove, Summary: "Forget a vector.", Fields: []tool.Field{id}},
	}
	for i := range all {
		all[i].Group = tool.Vectors
	}
	return all
}

// Match is one vector that was found.
type Match struct {
	ID       string          `json:"id"`
	Distance float64         `json:"distance"` // 0 is the same; cosine: 0 to 2
	Metadata json.RawMessage `json:"metadata"`
}

// encode makes sqlite-vec's form of a vector: float32, little endian.
func encode(list []any) ([]byte, error) {
	out := make([]byte, 0, 4*len(list))
	zero := true
	for i, x := range list {
		f, _ := x.(float64)
		n := float32(f)
		if math.IsInf(float64(n), 0) {
			r := tool.Refuse(deny.ToolInvalid, "vec", "the vector does not fit into 32-bit numbers", "scale it down")
			r.Fields = []deny.Field{{Name: fmt.Sprintf("vector[%d]", i), Why: "it is too large"}}
			return nil, r
		}
		zero = zero && n == 0
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(n))
	}
	if zero {
		r := tool.Refuse(deny.ToolInvalid, "vec", "the vector has no direction", "send one with a number that is not 0")
		r.Fields = []deny.Field{{Name: "vector", Why: "every number in it is 0"}}
		return nil, r
	}
	return out, nil
}

// fits refuses a vector of another dimension than those that are there.
func fits(t *store.Tx, what string, vector []byte) error {
	have, err := t.Int("SELECT length(vector) FROM vec LIMIT 1")
	if err != nil || have == 0 || have == int64(len(vector)) {
		return err
	}
	r := tool.Refuse(deny.ToolInvalid, what, fmt.Sprintf("the vectors of this agent have %d numbers", have/4), "send as many, or vec_delete all vectors first")
	r.Fields = []deny.Field{{Name: "vector", Why: fmt.Sprintf("it has %d numbers", len(vector)/4)}}
	return r
}

// drop deletes a vector, if it is there, and gives its bytes back.
func drop(t *store.Tx, id string) (there bool, err error) {
	size, err := t.Int("SELECT size FROM vec WHERE id = ?", id)
	if err != nil || size == 0 {
		return false, err
	}
	if _, err := t.Exec("DELETE FROM vec WHERE id = ?", id); err != nil {
		return false, err
	}
	return true, t.Charge(-size)
}

// put adds a vector under an id that has none, and counts it. Row is where it stands
// among equally near ones, when nothing else stands there; 0: behind all.
func put(t *store.Tx, what, id string, h *held) error {
	if err := fits(t, what, h.Vector); err != nil {
		return err
	}
	size := int64(len(id) + len(h.Vector) + len(h.Metadata) + rowCost)
	if err := t.Charge(size); err != nil {
		return err
	}
	_, err := t.Exec("INSERT INTO vec (rowid, id, vector, metadata, size) VALUES (CASE WHEN ?1 > 0 AND NOT EXISTS (SELECT 1 FROM vec WHERE rowid = ?1) THEN ?1 END, ?2, ?3, ?4, ?5)",
		h.Row, id, h.Vector, h.Metadata, size)
	return err
}

func (v *Vec) upsert(ctx context.Context, c *tool.Call) (any, error) {
	vector, err := encode(c.In.List("vector"))
	if err != nil {
		return nil, err
	}
	id, metadata, replaced := c.In.String("id"), c.In.Raw("metadata"), false
	if metadata == nil {
		metadata = json.RawMessage("{}")
	}
	err = v.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		return kept(ctx, t, id, func() (err error) {
			if replaced, err = drop(t, id); err != nil {
				return err
			}
			return put(t, c.What(), id, &held{Vector: vector, Metadata: metadata})
		})
	})
	return map[string]any{"id": id, "dimensions": len(vector) / 4, "replaced": replaced}, err
}

// nearest finds by each metric; rowid makes equal distances a stable order.
var nearest = map[string]string{
	"cosine": "SELECT id, vec_distance_cosine(vector, ?) AS d, metadata FROM vec ORDER BY d, rowid LIMIT ?",
	"l2":     "SELECT id, vec_distance_l2(vector, ?) AS d, metadata FROM vec ORDER BY d, rowid LIMIT ?",
}

func (v *Vec) query(ctx context.Context, c *tool.Call) (any, error) {
	vector, err := encode(c.In.List("vector"))
	if err != nil {
		return nil, err
	}
	matches := []Match{}
	err = v.store.View(ctx, func(t *store.Tx) error {
		if err := fits(t, c.What(), vector); err != nil {
			return err
		}
		return t.Query(nearest[c.In.String("metric")], func(row []sqlite.Value) error {
			matches = append(matches, Match{sqlite.Text(row[0]), sqlite.Float(row[1]), sqlite.Blob(row[2])})
			return nil
		}, vector, c.In.Int("limit"))
	})
	return map[string]any{"matches": matches}, err
}

func (v *Vec) remove(ctx context.Context, c *tool.Call) (any, error) {
	id, there := c.In.String("id"), false
	err := v.store.Update(ctx, func(t *store.Tx) error {
		t.Record(c.Take())
		return kept(ctx, t, id, func() (err error) {
			there, err = drop(t, id)
			return err
		})
	})
	return map[string]any{"id": id, "deleted": there}, err
}
