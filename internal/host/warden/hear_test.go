package warden

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/host"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

func hearer(out *bytes.Buffer) *agentRun {
	return &agentRun{w: &Warden{log: slog.New(slog.NewTextHandler(out, nil))}, Agent: host.Agent{}}
}

func event(t testing.TB, r record.Record) wire.GatewayEvent {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return wire.GatewayEvent{Record: raw}
}

func TestAFloodOfNoticesFillsNoLogAndIsCounted(t *testing.T) {
	var out bytes.Buffer
	a := hearer(&out)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 1000 {
		a.take(event(t, record.Record{Kind: record.Life, Verdict: record.Allowed, Target: record.Notice, Detail: fmt.Sprint("n", i, strings.Repeat("x", 9000))}), at)
	}
	if n := strings.Count(out.String(), "\n"); n != maxNotices || out.Len() > maxNotices*(maxNotice+300) {
		t.Errorf("%d lines, %d bytes", n, out.Len())
	}
	out.Reset()
	a.take(event(t, record.Record{Kind: record.Life, Verdict: record.Allowed, Target: record.Notice, Detail: "the next minute"}), at.Add(time.Minute))
	if !strings.Contains(out.String(), "the next minute") || !strings.Contains(out.String(), fmt.Sprint("left_out=", 1000-maxNotices)) {
		t.Error(out.String())
	}
	if n, o, _, _ := a.heard.told(); n == nil || n.Count != 1001 || o != nil {
		t.Errorf("%+v %+v", n, o)
	}
}

func TestLostMessagesAndWhatWaitsAreTold(t *testing.T) {
	var out bytes.Buffer
	a := hearer(&out)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a.take(wire.GatewayEvent{Outbox: &wire.Outbox{Waiting: 1000}}, at)
	r := record.Record{Kind: record.Message, Verdict: record.Failed, Target: record.Outbox, Count: 7, Reason: &deny.Reason{Code: deny.MessageUnavailable, Why: "the outbox is full"}}
	a.take(event(t, r), at)
	r.Count = 0
	a.take(event(t, r), at)
	n, o, _, _ := a.heard.told()
	if n != nil || o == nil || o.Waiting != 1000 || o.Lost == nil || o.Lost.Count != 8 || !strings.Contains(out.String(), "the outbox is full") {
		t.Errorf("%+v %+v %s", n, o, out.String())
	}
}

func TestGapsAreToldAndCounted(t *testing.T) {
	var out bytes.Buffer
	a := hearer(&out)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a.take(event(t, record.Record{
		Kind: record.Message, Verdict: record.Failed, Target: record.Gap, Count: 1,
		Reason: &deny.Reason{Code: deny.MessageUnavailable, What: "channel product", Why: "messages 3 to 5 are lost"},
	}), at)
	if !strings.Contains(out.String(), "channel product") || !strings.Contains(out.String(), "messages 3 to 5 are lost") {
		t.Error(out.String())
	}
	// 2, one more, then a gateway that began anew and has found 1.
	for _, n := range []uint64{2, 2, 3, 0, 1} {
		a.take(wire.GatewayEvent{Outbox: &wire.Outbox{Gaps: n}}, at)
	}
	if _, o, g, _ := a.heard.told(); o != nil || g == nil || g.Count != 4 || !g.Last.Equal(at) {
		t.Errorf("%+v %+v", o, g)
	}
}

// A gateway may be captured: nothing that it says may do more than be shown.
func FuzzWhatAGatewayTells(f *testing.F) {
	f.Add([]byte(`{"record":{"kind":"lifecycle","target":"notice","detail":"x"}}`))
	f.Add([]byte(`{"record":{"kind":"message","verdict":"failed","target":"outbox","count":18446744073709551615},"outbox":{"waiting":-1,"refused":3}}`))
	f.Add([]byte(`{"record":{"kind":"message","verdict":"failed","target":"gap","reason":{"what":"channel c","why":"lost"}},"outbox":{"gaps":18446744073709551615}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var e wire.GatewayEvent
		if json.Unmarshal(raw, &e) != nil {
			return
		}
		var out bytes.Buffer
		a := hearer(&out)
		a.take(e, time.Now())
		if strings.Count(out.String(), "\n") > 1 || out.Len() > 8*maxNotice+1000 {
			t.Errorf("%d bytes: %.200q", out.Len(), out.String())
		}
		a.heard.told()
	})
}
