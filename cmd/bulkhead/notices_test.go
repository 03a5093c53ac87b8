package main

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

func TestWhatStatusSaysOfNoticesAndTheOutbox(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) *wire.Heard { return &wire.Heard{Count: 3, Last: now.Add(-d)} }
	for _, k := range []struct {
		name           string
		s              wire.AgentStatus
		wrong, notices string
	}{
		{"nothing", wire.AgentStatus{}, "", ""},
		{"a notice", wire.AgentStatus{Agent: "w", Notices: at(time.Hour)}, "", "w: 3, the last at 2026-01-02T02:04:05Z: `bulkhead notices w`"},
		{"one of the day before yesterday", wire.AgentStatus{Agent: "w", Notices: at(48 * time.Hour)}, "", ""},
		{"messages wait", wire.AgentStatus{Agent: "w", Outbox: &wire.OutboxStatus{Outbox: wire.Outbox{Waiting: 9}}}, "w: 9 messages wait in its outbox for the adapter", ""},
		{"a gap stays one", wire.AgentStatus{Agent: "w", Gaps: at(0)}, "w: messages to it are MISSING in 3 places of channels", ""},
		{"a gap of long ago", wire.AgentStatus{Agent: "w", Gaps: at(25 * time.Hour)}, "", ""},
		{"messages are lost", wire.AgentStatus{Agent: "w", Outbox: &wire.OutboxStatus{Lost: at(0)}}, "w: 3 messages are LOST", ""},
	} {
		t.Run(k.name, func(t *testing.T) {
			got := toldOf(k.s, now)
			if w := strings.Join(got.wrong, "|"); !strings.HasPrefix(w, k.wrong) || (k.wrong == "") != (w == "") || strings.Join(got.notices, "|") != k.notices {
				t.Errorf("%+v", got)
			}
		})
	}
	if got := raisedText(wire.Raised{NoFile: 2048, CoreBytes: 1<<64 - 1, Witness: "/proc/7/limits"}); got != "open files 2048 (1024 by default), core files unlimited bytes (0 by default); by /proc/7/limits" {
		t.Error(got)
	}
}

func TestMetricsTellOfNoticesAndLostMessages(t *testing.T) {
	text := checkMetrics(&wire.Checks{Team: "t", Heard: []wire.AgentHeard{
		{Agent: "w", Notices: &wire.Heard{Count: 4}},
		{Agent: "v", Outbox: &wire.OutboxStatus{Outbox: wire.Outbox{Waiting: 9}, Lost: &wire.Heard{Count: 2}}},
		{Agent: "u", Gaps: &wire.Heard{Count: 5}},
	}})
	for _, want := range []string{`bulkhead_message_gaps_total{team="t",agent="u"} 5`, `bulkhead_notices_total{team="t",agent="w"} 4`, `bulkhead_outbox_messages{team="t",agent="v"} 9`, `bulkhead_messages_lost_total{team="t",agent="v"} 2`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestALostMessageIsADenialAndAnUnreachedAdapterIsNone(t *testing.T) {
	r := record.Record{Kind: record.Message, Verdict: record.Failed, Target: record.Outbox, Reason: &deny.Reason{Code: deny.MessageUnavailable}}
	if !refused(r) {
		t.Error("it is left out")
	}
	if r.Target = record.Gap; !refused(r) {
		t.Error("a gap is left out")
	}
	if r.Target = "adapter"; refused(r) { // the message is in the outbox
		t.Error("a message that waits is said to be refused")
	}
}

func TestAToolThatFailsIsADenialUnlessItsEgressTells(t *testing.T) {
	r := record.Record{Kind: record.Tool, Verdict: record.Failed, Reason: &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolUnavailable}}
	if !refused(r) {
		t.Error("what could not be written down is left out")
	}
	if r.Reason = (&deny.Reason{Layer: deny.LayerEgress, Code: deny.Unreachable}); refused(r) {
		t.Error("what was allowed and did not answer is said to be refused")
	}
	if r.Reason = nil; refused(r) {
		t.Error("a fault of ours is said to be refused")
	}
}
