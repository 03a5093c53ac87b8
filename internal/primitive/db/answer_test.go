package db

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
)

// FuzzAnswer holds that answers are written as encoding/json writes them, whatever
// is in a column: they are given to the agent as they are.
func FuzzAnswer(f *testing.F) {
	f.Add("a name", "plain", int64(1<<60), 1.5, []byte{1, 2}, true)
	f.Add("<n&>\"", "\u2028<&>\\ \x7f\xff", int64(-1), math.Inf(1), []byte(nil), false)
	f.Add("n", ` {"a": [1, "<"]} `, int64(0), 1e300, []byte("x"), true)
	f.Fuzz(func(t *testing.T, name, text string, n int64, x float64, blob []byte, more bool) {
		var row []byte
		for i, v := range []any{text, n, x, blob, nil} {
			for _, typ := range []string{"", "JSONB", "BOOLEAN"} {
				row = appendValue(append(appendText(append(row, ','), name+typ+string(rune('a'+i))), ':'), v, typ)
			}
		}
		if math.IsNaN(x) {
			return // SQLite has none
		}
		row[0] = '{'
		r := Result{Rows: []json.RawMessage{append(row, '}')}, RowCount: n, Truncated: more}
		if more {
			r.Rows = append(r.Rows, r.Rows[0])
		}
		want, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.answer(); !bytes.Equal(got, want) {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}
