package protocol

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

var drafts = []adapter.Draft{
	{IdempotencyKey: "1b4e28ba-2fa1-11d2-883f-0016d3cca427", To: "pm", Type: adapter.TaskAssignment, Priority: adapter.High, ReplyTo: 7, Body: json.RawMessage(`{"a":[1,"\u00e9"]}`)},
	{IdempotencyKey: "", Channel: "all-agents", Type: "note", Body: json.RawMessage(`null`)},
}

// What this package writes is read in the quick way.
func TestItsOwnFormIsScanned(t *testing.T) {
	for _, d := range drafts {
		got, ok := ScanDraft(AppendDraft(nil, &d))
		if !ok || !reflect.DeepEqual(got, d) {
			t.Errorf("%+v became %+v, %v", d, got, ok)
		}
	}
	taken := adapter.SendResult{Channel: "@a+b", Sequence: 1 << 60, Time: time.Date(2026, 11, 30, 1, 2, 3, 4, time.UTC), Duplicate: true}
	if got, ok := scanResult(AppendResult(nil, &taken)); !ok || !reflect.DeepEqual(got.SendResult, taken) {
		t.Errorf("%+v became %+v, %v", taken, got, ok)
	}
	refused := adapter.SendResult{Err: &deny.Reason{Layer: deny.LayerMessages, Code: deny.MessageQuota}}
	s, err := ReadSent(AppendResults(nil, []adapter.SendResult{taken, refused}))
	if err != nil || len(s.Results) != 2 || s.Results[0].Sequence != taken.Sequence || s.Results[1].Reason == nil {
		t.Errorf("results became %+v, %v", s, err)
	}
}

// Whatever the quick way accepts, encoding/json understands in the same way.
func FuzzScanned(f *testing.F) {
	for _, d := range drafts {
		f.Add(AppendDraft(nil, &d))
	}
	f.Add(AppendDrafts(nil, drafts, false))
	f.Add(AppendDrafts(nil, drafts, true))
	f.Add(AppendResults(nil, []adapter.SendResult{{Channel: "c", Sequence: 3, Time: time.Unix(0, 5).UTC()}, {Err: &deny.Reason{}}}))
	for _, n := range []int{9996, 9997, 9998} { // encoding/json takes 10,000 levels, of which a draft is the third
		f.Add([]byte(`{"drafts":[{"body":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}]}`))
	}
	f.Add([]byte(`{"drafts":[{"type":"a"},{"type":"b"} ],"late":true}`))
	f.Add([]byte(`{"drafts":[{"type":"a"},]}`))
	for _, s := range []string{`{"type":"a","type":"b"}`, `{"TYPE":"a"}`, `{"body":null,"to":null}`, `{"drafts":[],"drafts":[{}]}`, `{"reply_to_sequence_id":-1}`, `{"to":"\u0061"}`, `{"timestamp":"2026-02-30T00:00:00Z"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if d, ok := ScanDraft(text); ok {
			var want adapter.Draft
			if err := json.Unmarshal(text, &want); err != nil || !reflect.DeepEqual(d, want) {
				t.Fatalf("%q is %+v, encoding/json: %+v, %v", text, d, want, err)
			}
		}
		var send Send
		got, err := ReadSend(text)
		if want := json.Unmarshal(text, &send); (err == nil) != (want == nil) || err == nil && !reflect.DeepEqual(got, send) {
			t.Fatalf("%q is %+v, %v; encoding/json: %+v, %v", text, got, err, send, want)
		}
		if r, ok := scanResult(text); ok {
			var want Result
			if err := json.Unmarshal(text, &want); err != nil || !r.Time.Equal(want.Time) || r.Channel != want.Channel || r.Sequence != want.Sequence || r.Duplicate != want.Duplicate {
				t.Fatalf("%q is %+v, encoding/json: %+v, %v", text, r, want, err)
			}
		}
	})
}
