package record

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/deny"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestRecordContract(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000000, time.UTC)
	var b strings.Builder
	for _, r := range []Record{
		{Kind: Egress, Verdict: Allowed, Target: "api.example.com:443"},
		{Kind: Egress, Verdict: Denied, Target: "evil.example:443", Count: 12, Reason: &deny.Reason{
			Layer: deny.LayerEgress, Code: deny.NotListed, What: "CONNECT evil.example:443", Why: "not in the manifest",
			Mend: "add evil.example:443 to agents.writer.egress in bulkhead.yaml",
		}},
		{Kind: Tool, Verdict: Failed, Target: "mem_set", Detail: "the disk is full"},
		{Kind: Message, Verdict: Allowed, Target: "all-agents"},
		{Kind: Secret, Verdict: Allowed, Target: "API_KEY"},
		{Kind: Exec, Verdict: Allowed, Target: "sh", Detail: "by uid 0"},
		{Kind: Life, Verdict: Allowed, Target: "runtime", Detail: "adopted"},
		{Kind: Drift, Verdict: Failed, Target: "limits", Detail: "processes is not bounded"},
		{Kind: Repair, Verdict: Allowed, Target: "inet bulkhead", Detail: "the table was flushed and put back"},
	} {
		r.SchemaVersion, r.Time, r.Team, r.Agent = SchemaVersion, at, "pair", "writer"
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsRune(string(line), '\n') {
			t.Errorf("a record is more than one line: %s", line)
		}
		var back Record
		if err := json.Unmarshal(line, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, back); diff != "" {
			t.Errorf("changed on its way:\n%s", diff)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	const file = "../../docs/contracts/golden/records.jsonl"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("the contract changed (-golden +now):\n%s", diff)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"time":"2026-01-02T03:04:05Z","kind":"egress","verdict":"denied","reason":{"layer":"egress"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Record
		if json.Unmarshal(data, &r) != nil {
			return
		}
		line, err := json.Marshal(r)
		if err != nil {
			return // a year beyond 9999 does not encode
		}
		if strings.ContainsRune(string(line), '\n') {
			t.Errorf("more than one line: %s", line)
		}
		var back Record
		if err := json.Unmarshal(line, &back); err != nil {
			t.Errorf("%s does not read back: %v", line, err)
		}
	})
}
