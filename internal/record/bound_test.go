package record

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

// FuzzCut holds that a record of any texts finds its place, and is one.
func FuzzCut(f *testing.F) {
	f.Add("t", "a", "why", 1)
	f.Add(strings.Repeat("\x00", 70_000), strings.Repeat("<", 70_000), strings.Repeat("é", 70_000), 1000)
	f.Add("", "", "", 0)
	f.Fuzz(func(t *testing.T, a, b, c string, fields int) {
		r := Record{
			SchemaVersion: SchemaVersion, Time: time.Unix(0, 0).UTC(), Team: a, Agent: b, Kind: Tool, Verdict: Denied, Target: c, Detail: a,
			Token: b, Input: json.RawMessage(`{}`), Reason: &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolInvalid, What: a, Why: b, Mend: c, Execution: a},
		}
		for range min(max(fields, 0), 2000) {
			r.Reason.Fields = append(r.Reason.Fields, deny.Field{Name: a, Why: b})
		}
		before := len(r.Reason.Fields)
		short := r.Cut(1 << 20)
		text, err := short.Append(nil)
		if err != nil || len(text) > MaxBytes || !json.Valid(text) {
			t.Fatalf("%d bytes, %v", len(text), err)
		}
		if len(r.Reason.Fields) != before || r.Reason.What != a {
			t.Error("the reason that is answered was cut, too")
		}
	})
}
