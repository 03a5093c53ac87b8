package store

import (
	"database/sql/driver"
	"path/filepath"
	"strings"
	"testing"
)

// TestHotQueriesNeitherScanNorSort holds SQLite's plans: a table that grows
// with history must not be read from end to end by a send, a read or a start.
func TestHotQueriesNeitherScanNorSort(t *testing.T) {
	d := pureGo()
	c, err := d.writer(filepath.Join(t.TempDir(), "messages.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := migrate(c); err != nil {
		t.Fatal(err)
	}
	whole := map[string]bool{ // what is small, or wanted as a whole
		"SCAN piece": true, "SCAN place": true, "SCAN CONSTANT ROW": true, "SCAN d USING INDEX delivery_pending": true,
	}
	for name, sql := range map[string]string{
		"key": findKey, "sequence": "SELECT root FROM message WHERE " + atPlace, "replay": selectMessage + "WHERE m.id IN (" + fromPlace + ") ORDER BY m.id",
		"pending": selectPending, "newest": newestOf, "places": deletePlaces, "keys": keysOf,
		"missed": selectMissed, "lost": seqFromPlace, "first of those from": fromPlace,
	} {
		var plan []string
		if err := c.query("EXPLAIN QUERY PLAN "+sql, func(row []driver.Value) error {
			plan = append(plan, text(row[3]))
			return nil
		}, 1, 1, 1, []byte{1}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s:\n  %s", name, strings.Join(plan, "\n  "))
		for _, step := range plan {
			if strings.Contains(step, "TEMP B-TREE") || strings.HasPrefix(step, "SCAN") && !whole[step] {
				t.Errorf("%s: %s", name, step)
			}
		}
	}
}
