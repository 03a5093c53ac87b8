package record

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"bulkhead/internal/deny"
)

// FuzzAppend holds that records are written as encoding/json writes them.
func FuzzAppend(f *testing.F) {
	f.Add("team", "mem_set", `{"key":"a"}`, int64(1_900_000_000_000_000_001), uint64(0), int64(12), true)
	f.Add("<&>", "a \"b\"\\\n\u2028\xff", `{"key": "<a b>"}`, int64(-1), uint64(3), int64(0), false)
	f.Add("", "", `nothing`, int64(1<<62), uint64(1), int64(-1), true)
	f.Fuzz(func(t *testing.T, team, target, input string, at int64, count uint64, micros int64, denied bool) {
		r := Record{
			SchemaVersion: SchemaVersion, Time: time.Unix(0, at).UTC(), Team: team, Agent: target, Kind: Tool, Verdict: Allowed, Target: target,
			Count: count, Detail: team, Token: target, Input: json.RawMessage(input), Micros: micros,
		}
		if denied {
			r.Verdict, r.Reason = Denied, &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolInvalid, What: target, Fields: []deny.Field{{Name: team}}}
		}
		for _, when := range []time.Time{r.Time, r.Time.Local(), r.Time.In(time.FixedZone("x", 3600)), r.Time.AddDate(9000, 0, 0), {}} {
			r.Time = when
			want, wantErr := json.Marshal(r)
			got, err := r.Append([]byte("x"))
			if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, append([]byte("x"), want...)) {
				t.Fatalf("%+v: %s, %v; want %s, %v", r, got, err, want, wantErr)
			}
		}
	})
}
