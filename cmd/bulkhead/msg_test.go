package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

const messageKey = "7b0d4a0e-3a3b-4f0e-9a51-5d1f6f4a2c11"

// aMessage tries to act on the operator's terminal.
func aMessage(n uint64) adapter.Message {
	return adapter.Message{
		IdempotencyKey: messageKey, Sequence: n, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), From: "pm", Channel: "product",
		Type: adapter.TaskAssignment, Priority: adapter.High, ReplyTo: n - 1, Body: json.RawMessage("{\"task\":\"write\u202eit\"}"),
	}
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// aRequest tries to act on the operator's terminal, and to be approved.
func aRequest() adapter.MembershipRequest {
	return adapter.MembershipRequest{
		ID: 4, By: "orchestrator", At: at, Expires: at.Add(adapter.RequestLife), State: adapter.RequestOpen,
		ChannelRequest: adapter.ChannelRequest{Channel: "product", Agent: "ops", Change: adapter.Join, Reason: "please\r\x1b[1A4  approved already\n\u202eevil"},
	}
}

// adapterAnswers is what an adapter says to operators.
func adapterAnswers(t *testing.T) map[string]any {
	t.Helper()
	dead := adapter.DeadLetter{
		ID: 17, Recipient: "engineering", Reason: "refused 4 times; the last reason: \x1b]0;evil\aout of disk", At: time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC),
		Attempts: 4, Message: aMessage(7),
	}
	return map[string]any{
		wire.VerbMessages: func(body json.RawMessage) any {
			var q wire.MessagesRequest
			if err := json.Unmarshal(body, &q); err != nil {
				return wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}
			}
			switch q.Verb {
			case protocol.VerbTail:
				var at protocol.TailRequest
				_ = json.Unmarshal(q.Body, &at)
				if at.Position != 0 {
					return adapter.Tail{Position: at.Position}
				}
				return adapter.Tail{Position: 2, Messages: []adapter.Message{aMessage(7), {
					IdempotencyKey: messageKey, Sequence: 1, Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC), From: "pm", To: "engineering",
					Channel: "@engineering+pm", Type: "note", Priority: adapter.Normal, Body: json.RawMessage(`"hello"`),
				}}}
			case protocol.VerbOperatorThread:
				return adapter.Page{Messages: []adapter.Message{aMessage(6), aMessage(7)}}
			case protocol.VerbQueues:
				return protocol.Queues{Queues: []adapter.QueueState{
					{Agent: "engineering", Queued: 500, Leased: 2, Retry: 1, Dead: 1, Oldest: 90 * time.Second, Bytes: 3 << 20, Senders: map[string]int{"pm": 499, "qa": 1}},
					{Agent: "pm", Senders: map[string]int{}},
				}}
			case protocol.VerbOperatorSend:
				return protocol.Sent{Results: []protocol.Result{{SendResult: adapter.SendResult{Channel: "product", Sequence: 8, Time: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC)}}}}
			case protocol.VerbDead:
				var at protocol.DeadRequest
				_ = json.Unmarshal(q.Body, &at)
				if at.After >= 17 {
					return protocol.DeadLetters{DeadLetters: []adapter.DeadLetter{}}
				}
				return protocol.DeadLetters{DeadLetters: []adapter.DeadLetter{dead}}
			case protocol.VerbDeadReplay, protocol.VerbDeadDrop:
				return protocol.Counted{Count: 1}
			case protocol.VerbMembers:
				return protocol.Members{Channels: []adapter.ChannelMembers{
					{Channel: "platform", Members: []string{}, Changes: []adapter.MembershipChange{{Agent: "orchestrator", Change: adapter.Leave, Request: 2, At: at}}},
					{Channel: "product", Members: []string{"ops\x1b[2J", "pm"}, Last: 41, Changes: []adapter.MembershipChange{{Agent: "ops", Change: adapter.Join, Request: 3, At: at, From: 18}}},
				}}
			case protocol.VerbRequests:
				return protocol.Requests{Requests: []adapter.MembershipRequest{
					aRequest(), {ID: 5, By: "orchestrator", ChannelRequest: adapter.ChannelRequest{Channel: "product", Agent: "qa", Change: adapter.Leave, Reason: "done"}, At: at, Expires: at.Add(adapter.RequestLife), State: adapter.RequestRefused, Decided: at, Why: "no\nnever"},
				}}
			case protocol.VerbDecide:
				var d protocol.Decision
				_ = json.Unmarshal(q.Body, &d)
				r := aRequest()
				r.State, r.Decided, r.Why = adapter.RequestApproved, at, d.Reason
				if r.Duplicate = d.ID == 3; !d.Approve {
					r.State = adapter.RequestRefused
				}
				return r
			case protocol.VerbMetrics:
				return protocol.Text{Text: "# TYPE bulkhead_messages_queued gauge\nbulkhead_messages_queued{agent=\"pm\"} 0\n"}
			}
			return wire.Failure{Message: "unknown verb " + q.Verb, Exit: wire.ExitFailed}
		},
		wire.VerbChecks: wire.Checks{
			SchemaVersion: 1, Team: "seven", Messages: true, Checks: 3, Alerts: 1, Last: time.Unix(1790000000, 0).UTC(), Held: 69,
			Broken: []wire.Drift{{Agent: "pm", Statement: "limits", Detail: "processes is not bounded"}}, Fenced: []string{"pm"},
		},
		wire.VerbMessagesRepair: wire.RepairResult{SchemaVersion: 1, Team: "seven", Report: "1 page was damaged\n12 messages were read, none is lost\n", Ready: true},
	}
}

func TestWhatOperatorsSeeOfMessages(t *testing.T) {
	socket := answers(t, adapterAnswers(t))
	for _, c := range []struct {
		name string
		args []string
		last string // what the JSON file is called; lines for tail
	}{
		{"msg-tail", []string{"msg", "tail", "--all"}, "msg-tail.jsonl"},
		{"msg-send", []string{"msg", "send", "--channel", "product", "--key", messageKey, `{"a":1}`}, "msg-send.json"},
		{"msg-queues", []string{"msg", "queues"}, "msg-queues.json"},
		{"msg-threads", []string{"msg", "threads", "product", "7"}, "msg-threads.json"},
		{"msg-channels", []string{"msg", "channels"}, "msg-channels.json"},
		{"msg-requests", []string{"msg", "requests", "--all"}, "msg-requests.json"},
		{"msg-approve", []string{"msg", "approve", "3"}, "msg-approve.json"},
		{"msg-refuse", []string{"msg", "refuse", "4", "--reason", "not now"}, "msg-refuse.json"},
		{"msg-repair", []string{"msg", "repair"}, "msg-repair.json"},
		{"dlq-list", []string{"dlq", "list"}, "dlq-list.json"},
		{"dlq-inspect", []string{"dlq", "inspect", "17"}, "dlq-inspect.json"},
		{"dlq-replay", []string{"dlq", "replay", "17", "18"}, "dlq-replay.json"},
		{"dlq-drop", []string{"dlq", "drop", "--all", "engineering"}, "dlq-drop.json"},
		{"metrics", []string{"metrics"}, "metrics.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(c.args, "--team", "seven", "--socket", socket)
			out, errout, code := said(t, args...)
			if code != 0 {
				t.Errorf("exit code %d: %q", code, errout)
			}
			if strings.ContainsAny(out, "\x1b\a\u202e") {
				t.Errorf("controls reach the terminal: %q", out)
			}
			golden(t, filepath.Join("testdata", "screens", c.name+".txt"), out)
			out, errout, code = said(t, append(args, "--json")...)
			if code != 0 || errout != "" || strings.ContainsAny(out, "\x1b\a\u202e") {
				t.Errorf("--json: exit code %d, %q, %q", code, errout, out)
			}
			golden(t, filepath.Join("..", "..", "docs", "contracts", "json", c.last), out)
		})
	}
}

func TestMessagesAreRefusedWithTheirMend(t *testing.T) {
	reason := deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageInvalid, What: "send to nobody", Why: "two fields fail", Mend: "correct them",
		Fields: []deny.Field{{Name: "to", Why: "no such agent"}, {Name: "type", Why: "empty"}},
	}
	socket := answers(t, map[string]any{wire.VerbMessages: protocol.Sent{Results: []protocol.Result{{Refused: protocol.Refused{Reason: &reason}}}}})
	_, errout, code := said(t, "msg", "send", "--to", "nobody", "x", "--team", "seven", "--socket", socket)
	if code != wire.ExitBadInput || !strings.Contains(errout, "  to: no such agent\n") || !strings.Contains(errout, "to mend: correct them") {
		t.Errorf("%d, %q", code, errout)
	}
	for _, args := range [][]string{
		{"msg", "send", "x"},
		{"msg", "send", "--to", "a", "--channel", "b", "x"},
		{"msg", "threads", "product", "none"},
		{"dlq", "replay"},
		{"msg", "approve"},
		{"msg", "approve", "none"},
		{"msg", "approve", "0"},
		{"msg", "approve", "-1"},
		{"msg", "approve", "1", "2"},
		{"msg", "refuse", "1"},
		{"msg", "refuse", "1", "--reason", " "},
		{"dlq", "drop", "1", "--all", "pm"},
		{"dlq", "inspect", "-1"},
		{"dlq", "inspect", "0"},
	} {
		if _, errout, code := said(t, append(args, "--team", "seven", "--socket", socket)...); code != wire.ExitBadInput {
			t.Errorf("%v: %d, %q", args, code, errout)
		}
	}
}

func TestABackupIsWholeAndRootsAlone(t *testing.T) {
	from := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(from, []byte("everything"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	to := filepath.Join(t.TempDir(), "seven.db")
	if err := copyTo(to, f, 10); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to)
	st, serr := os.Stat(to)
	if err != nil || serr != nil || string(got) != "everything" || st.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v, %v, %v", got, err, serr, st)
	}
	if err := copyTo(to, f, 11); err == nil {
		t.Error("a copy that ends early was taken")
	}
	if got, _ := os.ReadFile(to); string(got) != "everything" {
		t.Errorf("a failed backup changed the former one: %q", got)
	}
}
