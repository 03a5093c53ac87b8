package record

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/deny"
)

func TestRepeatsMakeOneMoreLine(t *testing.T) {
	var out bytes.Buffer
	l := NewLog("t", &out)
	no := &deny.Reason{Layer: deny.LayerEgress, Code: deny.NotListed, What: "evil.example:443", Why: "w", Mend: "m"}
	for range 5 {
		l.Add("writer", Egress, "evil.example:443", Denied, no)
		l.Add("writer", Egress, "api.example.com:443", Allowed, nil)
	}
	l.Flush()
	l.Flush() // nothing happened since: no line
	var got []string
	for line := range strings.Lines(out.String()) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Team != "t" || r.Agent != "writer" || r.Kind != Egress || r.Time.IsZero() || (r.Verdict == Denied) != (r.Reason != nil) {
			t.Fatalf("%+v", r)
		}
		got = append(got, string(r.Verdict)+" "+r.Target+" "+strconv.FormatUint(r.Count, 10))
	}
	want := []string{"denied evil.example:443 1", "allowed api.example.com:443 1", "denied evil.example:443 4", "allowed api.example.com:443 4"}
	if len(got) != 4 || got[0] != want[0] || got[1] != want[1] || !strings.Contains(strings.Join(got[2:], "|"), want[2]) || !strings.Contains(strings.Join(got[2:], "|"), want[3]) {
		t.Fatalf("%q, want %q", got, want)
	}
}

func TestEndlessNamesDoNotFillTheLog(t *testing.T) {
	var out bytes.Buffer
	l := NewLog("t", &out)
	for i := range 10_000 {
		l.Add("writer", Egress, strconv.Itoa(i)+".evil.example:443", Denied, &deny.Reason{Code: deny.NotListed})
	}
	l.Flush()
	lines := strings.Count(out.String(), "\n")
	if lines > maxLines+2 || !strings.Contains(out.String(), `"target":"(others)","count":9743`) {
		t.Fatalf("%d lines, or the rest was not counted", lines)
	}
}

func TestAFloodFoldsNothingOfAnotherTeamsAgent(t *testing.T) {
	var out bytes.Buffer
	l := NewLog("", &out)
	for i := range 2 * maxLines {
		l.AddOf("a", "ci", Tool, strconv.Itoa(i), Denied, nil)
	}
	out.Reset()
	if !l.AddOf("b", "ci", Tool, "what an operator looks for", Denied, nil) || !strings.Contains(out.String(), `"team":"b","agent":"ci"`) || !strings.Contains(out.String(), "what an operator looks for") {
		t.Errorf("team b's agent is folded with team a's: %s", out.String())
	}
}

// What was asked for is as long as a request's head, and a runtime asks for endless names.
func TestALineIsNotAsLongAsWhatWasAskedFor(t *testing.T) {
	var out bytes.Buffer
	l := NewLog("t", &out)
	long := strings.Repeat("x", 60<<10)
	asked := &deny.Reason{Code: deny.BadTarget, What: "CONNECT " + long, Why: long, Mend: "m", Fields: []deny.Field{{Name: long, Why: long}}}
	l.Add("writer", Egress, long, Denied, asked)
	if n := out.Len(); n > 8<<10 || asked.Why != long {
		t.Errorf("%d bytes", n)
	}
	out.Reset()
	l.Add("writer", Tool, "db_query", Denied, &deny.Reason{Code: deny.ToolInvalid, Why: "SECRET", Kept: &deny.Reason{Code: deny.ToolInvalid, Why: "left out"}})
	if strings.Contains(out.String(), "SECRET") || !strings.Contains(out.String(), "left out") {
		t.Error(out.String())
	}
}
