package db

import (
	"bytes"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// undo is what a transaction did to the database, as it is kept with a step.
type undo struct {
	// Never says why it cannot be taken back; the rest is empty then.
	Never  string   `json:"never,omitempty"`
	Tables []edited `json:"tables,omitempty"` // whose rows were changed
	Made   []object `json:"made,omitempty"`   // tables and indexes
}

// edited is a table, and its rows that were changed.
type edited struct {
	Name string    `json:"name"`
	SQL  string    `json:"sql"` // that made it
	Rows []editRow `json:"rows"`
}

// editRow is a row before and after. Rows are the same when their rowid and all of
// their values are, each with its type.
type editRow struct {
	ID     int64  `json:"id"`              // rowid
	Before row    `json:"before"`          // null: there was none
	After  []byte `json:"after,omitempty"` // [row.sum]; empty: there is none
}

// object is a row of sqlite_schema.
type object struct {
	Type string `json:"type"` // table, index
	Name string `json:"name"`
	SQL  string `json:"sql"`
}

// row is the values of a row, in the order of the columns, as [cellOf] writes them; nil: no row.
type row [][]byte

func (r row) same(o row) bool { return (r == nil) == (o == nil) && slices.EqualFunc(r, o, bytes.Equal) }

// sum identifies a row; empty: no row.
func (r row) sum() []byte {
	if r == nil {
		return nil
	}
	h := sha256.New()
	for _, c := range r {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(c)))) // a hash never fails
		_, _ = h.Write(c)
	}
	return h.Sum(nil)
}

func (r row) bytes() (n int) {
	for _, c := range r {
		n += len(c)
	}
	return n
}

// The first byte of a cell.
const (
	cellNull = 'n'
	cellInt  = 'i' // 8 bytes, big endian
	cellReal = 'r' // 8 bytes, IEEE 754, big endian
	cellText = 't'
	cellBlob = 'b'
)

// cellOf writes a value of SQLite's with its type.
func cellOf(v driver.Value) []byte {
	switch v := v.(type) {
	case int64:
		return binary.BigEndian.AppendUint64([]byte{cellInt}, uint64(v)) // #nosec G115 -- the same bits
	case float64:
		return binary.BigEndian.AppendUint64([]byte{cellReal}, math.Float64bits(v))
	case string:
		return append([]byte{cellText}, v...)
	case []byte:
		return append([]byte{cellBlob}, v...)
	}
	return []byte{cellNull}
}

// valueOf reads what [cellOf] wrote.
func valueOf(c []byte) (driver.Value, error) {
	switch {
	case len(c) == 1 && c[0] == cellNull:
		return nil, nil
	case len(c) == 9 && c[0] == cellInt:
		return int64(binary.BigEndian.Uint64(c[1:])), nil // #nosec G115 -- the same bits
	case len(c) == 9 && c[0] == cellReal:
		return math.Float64frombits(binary.BigEndian.Uint64(c[1:])), nil
	case len(c) > 0 && c[0] == cellText:
		return string(c[1:]), nil
	case len(c) > 0 && c[0] == cellBlob:
		return append([]byte{}, c[1:]...), nil
	}
	return nil, fmt.Errorf("%.20x is no value", c)
}
