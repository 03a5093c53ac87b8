package warden

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/wire"
)

func TestConnectionsToAPortMakeOneRecordAMinute(t *testing.T) {
	var f forwarded
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	k := forwardKey{"bh-pair-writer", 8080, 0}
	if n, first := f.count(k, at); n != 1 || !first {
		t.Errorf("the first one makes no record: %d, %v", n, first)
	}
	for range 30 {
		if _, first := f.count(k, at.Add(10*time.Second)); first {
			t.Error("each makes one")
		}
	}
	if n, first := f.count(forwardKey{"bh-pair-writer", 8081, 0}, at.Add(time.Second)); n != 1 || !first {
		t.Error("another port is folded with the first")
	}
	if n, first := f.count(k, at.Add(time.Minute)); n != 31 || !first {
		t.Errorf("%d, %v: 31 since", n, first)
	}
	f.count(forwardKey{"bh-pair-other", 1, 0}, at.Add(2*time.Hour))
	if len(f.last) != 1 {
		t.Errorf("%d are remembered", len(f.last))
	}
}

func TestARecordOfACommandHasNoArguments(t *testing.T) {
	x := (&call{}).command(nil, "exec in runtime", []string{"/usr/bin/" + strings.Repeat("x", 100), "--password", "hunter2"})
	if len(x.target) != maxProgram || strings.Contains(x.target+x.what, "hunter2") || !strings.Contains(x.what, "2 arguments") {
		t.Errorf("%+v", x)
	}
}

func TestHowACommandEnded(t *testing.T) {
	for _, k := range []struct{ verb, body, how, failed string }{
		{wire.VerbExited, `{"code":5}`, "exit 5", ""},
		{wire.VerbExited, `{"code":137,"signal":"killed"}`, "exit 137, killed", ""},
		{wire.VerbExited, `{`, "", "decode"},
		{wire.VerbError, `{"message":"there is no such program"}`, "", "no such program"},
	} {
		how, err := exitHow(wire.Message{Verb: k.verb, Body: []byte(k.body)})
		if how != k.how || (err == nil) != (k.failed == "") || err != nil && !strings.Contains(err.Error(), k.failed) {
			t.Errorf("%+v: %q, %v", k, how, err)
		}
	}
}
