package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

func TestWhatAWatchPrints(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	records := []record.Record{
		{Kind: record.Life, Verdict: record.Allowed, Detail: "ready"},
		{Kind: record.Egress, Verdict: record.Allowed, Target: "api.example.com:443", Count: 7},
		{
			Kind: record.Egress, Verdict: record.Denied, Target: "evil.example:443\x1b]0;evil\a\u202e", Count: 1,
			Reason: &deny.Reason{Layer: deny.LayerEgress, Code: deny.NotListed, Why: "evil.example is not in the egress list", Mend: "list it"},
		},
		{Kind: record.Life, Verdict: record.Failed, Detail: "gateway ended: signal: killed\nroot@host:~# "},
		{Kind: record.Tool, Verdict: record.Allowed, Target: "mem_set", Token: "tok1", Micros: 1234, Input: json.RawMessage(`{"key":"a","value":{"size":5,"hash":"00ff"}}`)},
		messageRecord("pair", adapter.Message{From: "writer", To: "reviewer", Channel: "@reviewer+writer", Sequence: 7, Type: "question", IdempotencyKey: "k1", Body: json.RawMessage(`"SECRET"`)}),
		{Kind: record.Exec, Verdict: record.Started, Target: "sh", Detail: "exec in runtime, 2 arguments, by the operator with user id 0"},
		{Kind: record.Repair, Verdict: record.Allowed, Target: "nftables table inet bulkhead", Detail: "restored"},
	}
	for _, k := range []struct {
		json bool
		file string
	}{{false, filepath.Join("testdata", "screens", "watch.txt")}, {true, filepath.Join("..", "..", "docs", "contracts", "json", "watch.jsonl")}} {
		out, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		w := &watching{a: &app{out: out, json: k.json}, stop: func() {}}
		for _, r := range records {
			r.SchemaVersion, r.Time, r.Team, r.Agent = 1, at, "pair", "somebody else"
			agent := "writer"
			if r.Kind == record.Repair {
				agent = ""
			}
			w.show(r, agent)
		}
		_ = out.Close()
		got, err := os.ReadFile(out.Name())
		if err != nil || w.failed != nil {
			t.Fatal(err, w.failed)
		}
		if strings.ContainsAny(string(got), "\x1b\a\u202e") || strings.Contains(string(got), "SECRET") || strings.Count(string(got), "\n") != len(records) {
			t.Errorf("controls reach the terminal: %q", got)
		}
		golden(t, k.file, string(got))
	}
}
