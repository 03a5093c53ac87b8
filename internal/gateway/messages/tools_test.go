package messages

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/tooltest"
)

// tools are alice's message tools, through the dispatcher that REST and MCP share.
func (s *stage) tools() tooltest.Caller {
	return tooltest.New(s.t, tooltest.Store(s.t, nil), s.m.Tools()...)
}

// from has another agent write to alice, before her adapter comes up: one agent
// at a time has a socket here.
func (s *stage) from(agent string, bodies ...string) {
	s.t.Helper()
	s.posted(agent, adapter.Draft{To: "alice"}, bodies...)
}

func (s *stage) posted(agent string, d adapter.Draft, bodies ...string) {
	s.t.Helper()
	s.up(agent)
	c, err := client.Dial(s.t.Context(), filepath.Join(s.dir, agent+".sock"), token)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, body := range bodies {
		d.IdempotencyKey, d.Type, d.Body = draftkey.New(), "note", json.RawMessage(body)
		if r := c.Send(s.t.Context(), "", []adapter.Draft{d}); r[0].Err != nil {
			s.t.Fatal(r[0].Err)
		}
	}
	_ = c.Close()
	s.kill()
}

// page are the sequences and bodies of a page.
func page(t *testing.T, answer string) (out string, p struct {
	Messages []adapter.Message
	Next     uint64
},
) {
	t.Helper()
	if err := json.Unmarshal([]byte(answer), &p); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	var all []string
	for _, m := range p.Messages {
		all = append(all, fmt.Sprintf("%d:%s", m.Sequence, m.Body))
	}
	return strings.Join(all, " "), p
}

func TestEveryMessageToolDoesItsWork(t *testing.T) {
	s := newStage(t)
	s.from("bob", `1`, `2`)
	s.up("alice")
	s.linked()
	c := s.tools()
	const key = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	for _, k := range []struct{ in, want string }{
		{`{"to":"bob","type":"note","body":{"n":12345678901234567890},"idempotency_key":"` + key + `"}`, `"channel":"@alice+bob","channel_sequence_id":3`},
		{`{"to":"bob","type":"note","body":{"n":12345678901234567890},"idempotency_key":"` + key + `"}`, `"duplicate":true`},
		{`{"to":"bob","type":"result","body":null,"priority":"high","reply_to":1}`, `"channel_sequence_id":4`},
		{`{"channel":"all","type":"escalation","body":"critical, and in the manifest"}`, `"channel":"all","channel_sequence_id":1`},
	} {
		if got := c.Do("msg_send", k.in); !strings.Contains(got, k.want) {
			t.Errorf("msg_send %s: %s", k.in, got)
		}
	}
	var got struct{ Deliveries []adapter.Delivery }
	receive := func(in string) []adapter.Delivery {
		t.Helper()
		got.Deliveries = nil
		if err := json.Unmarshal([]byte(c.Do("msg_receive", in)), &got); err != nil {
			t.Fatal(err)
		}
		return got.Deliveries
	}
	if d := receive(`{"channel":"all","wait":0}`); len(d) != 0 {
		t.Errorf("what an agent sent came back to it: %+v", d)
	}
	for n, in := range []string{`{"max":1,"wait":20,"lease":3600,"channel":"@alice+bob"}`, `{"limit":10,"wait":20}`} {
		d := receive(in)
		if len(d) != 1 || d[0].From != "bob" || string(d[0].Body) != fmt.Sprint(n+1) || d[0].Sequence != uint64(n+1) || d[0].Attempt != 1 {
			t.Fatalf("%s: %+v", in, d)
		}
		if again := receive(`{}`); len(again) != 0 {
			t.Errorf("while it is leased, also came %+v", again)
		}
		if out := c.Do("msg_ack", fmt.Sprintf(`{"leases":[%q,"none"]}`, d[0].Lease)); !strings.HasPrefix(out, `{"results":[{"status":200},{"status":409`) || !strings.Contains(out, string(deny.MessageLeaseOver)) {
			t.Error(out)
		}
	}
	if out, _ := page(t, c.Do("msg_thread", `{"channel":"@alice+bob","sequence":1}`)); out != "1:1 4:null" {
		t.Errorf("the thread: %s", out)
	}
	if out, _ := page(t, c.Do("msg_thread", `{"channel":"@alice+bob","channel_sequence_id":1,"after":1,"limit":1}`)); out != "4:null" {
		t.Errorf("the thread's next page: %s", out)
	}
	if out, p := page(t, c.Do("msg_replay", `{"channel":"@alice+bob","from":2,"limit":2}`)); out != `2:2 3:{"n":12345678901234567890}` || p.Next != 4 {
		t.Errorf("replay: %s, next %d", out, p.Next)
	}
	if out, _ := page(t, c.Do("msg_replay", `{"channel":"all"}`)); out != `1:"critical, and in the manifest"` {
		t.Errorf("replay of a channel from the start: %s", out)
	}
	if out := c.Do("msg_channels", `{}`); !strings.Contains(out, `"channel":"all"`) || !strings.Contains(out, `"channel":"@alice+bob"`) || strings.Contains(out, "secret") {
		t.Error(out)
	}
	if d := receive(`{}`); len(d) != 0 {
		t.Errorf("what was acknowledged came again: %+v", d)
	}
}

func TestEveryRefusalOfAMessageToolHasItsCode(t *testing.T) {
	s := newStage(t)
	s.up("alice")
	s.linked()
	c := s.tools()
	const key = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	c.Do("msg_send", `{"to":"bob","type":"note","body":1,"idempotency_key":"`+key+`"}`)
	for _, k := range []struct {
		tool, in string
		code     deny.Code
		says     string // in the reason or a field
	}{
		{"msg_send", `{"to":"carol","type":"note","body":1}`, deny.MessageNotAllowed, "carol"},
		{"msg_send", `{"channel":"secret","type":"note","body":1}`, deny.MessageNotAllowed, "secret"},
		{"msg_send", `{"to":"bob","type":"policy_update","body":1}`, deny.MessageNotAllowed, "policy_update"},
		{"msg_send", `{"to":"bob","type":"note","body":2,"idempotency_key":"` + key + `"}`, deny.MessageDuplicateKey, "key"},
		{"msg_send", `{"to":"bob","type":"note","body":"` + strings.Repeat("x", adapter.MaxBody) + `"}`, deny.ToolInvalid, "body"},
		{"msg_send", `{"to":"bob","channel":"all","type":"note","body":1}`, deny.ToolInvalid, "channel"},
		{"msg_send", `{"type":"note","body":1}`, deny.ToolInvalid, "to"},
		{"msg_send", `{"to":"bob","type":"Note","body":1}`, deny.ToolInvalid, "type"},
		{"msg_send", `{"to":"bob","type":"note"}`, deny.ToolInvalid, "body"},
		{"msg_send", `{"to":"bob","type":"note","body":1,"priority":"urgent"}`, deny.ToolInvalid, "priority"},
		{"msg_send", `{"to":"bob","type":"note","body":1,"from":"carol"}`, deny.ToolInvalid, "from"},
		{"msg_send", `{"to":"bob","type":"note","body":1,"idempotency_key":"short"}`, deny.ToolInvalid, "idempotency_key"},
		{"msg_send", `{"to":"bob","type":"note","body":1,"reply_to":0}`, deny.ToolInvalid, "reply_to"},
		{"msg_receive", `{"max":101}`, deny.ToolInvalid, "max"},
		{"msg_receive", `{"wait":61}`, deny.ToolInvalid, "wait"},
		{"msg_receive", `{"lease":0}`, deny.ToolInvalid, "lease"},
		{"msg_receive", `{"channel":"secret"}`, deny.MessageNotAllowed, "alice is no member"},
		{"msg_receive", `{"channel":"@bob+carol"}`, deny.MessageNotAllowed, "@bob+carol"},
		{"msg_receive", `{"channel":"@alice+carol","wait":60}`, deny.MessageNotAllowed, "may not write to each other"},
		{"msg_ack", `{"leases":[]}`, deny.ToolInvalid, "leases"},
		{"msg_ack", `{"leases":[7]}`, deny.ToolInvalid, "leases"},
		{"msg_ack", `{}`, deny.ToolInvalid, "leases"},
		{"msg_thread", `{"channel":"secret","channel_sequence_id":1}`, deny.MessageNotAllowed, "secret"},
		{"msg_thread", `{"channel":"@bob+carol","channel_sequence_id":1}`, deny.MessageNotAllowed, "@bob+carol"},
		{"msg_thread", `{"channel":"all"}`, deny.ToolInvalid, "channel_sequence_id"},
		{"msg_thread", `{"channel_sequence_id":1}`, deny.ToolInvalid, "channel"},
		{"msg_replay", `{"channel":"secret"}`, deny.MessageNotAllowed, "secret"},
		{"msg_replay", `{"channel":"all","limit":1001}`, deny.ToolInvalid, "limit"},
		{"msg_replay", `{}`, deny.ToolInvalid, "channel"},
		{"msg_channels", `{"more":1}`, deny.ToolInvalid, "more"},
		{"msg_channel_request", `{"channel":"board","agent":"alice","change":"join","reason":"x"}`, deny.MessageNotAllowed, "names no orchestrator"},
		{"msg_channel_request", `{"channel":"board","agent":"alice","change":"approve","reason":"x"}`, deny.ToolInvalid, "change"},
		{"msg_channel_request", `{"channel":"board","agent":"alice","change":"join","reason":"x","state":"approved"}`, deny.ToolInvalid, "state"},
		{"msg_channel_request", `{"channel":"board","agent":"alice","change":"join","reason":""}`, deny.ToolInvalid, "reason"},
		{"msg_channel_request", `{}`, deny.ToolInvalid, "channel"},
	} {
		refusedSaying(t, c, k.tool, k.in, k.code, k.says)
	}
	t.Run("while the adapter is away, sends are kept and the rest says so", func(t *testing.T) {
		s.kill()
		s.away()
		if got := c.Do("msg_send", `{"to":"bob","type":"note","body":"kept"}`); !strings.Contains(got, `"outbox":true`) {
			t.Error(got)
		}
		for name, in := range map[string]string{
			"msg_receive": `{}`, "msg_ack": `{"leases":["x"]}`, "msg_thread": `{"channel":"all","sequence":1}`, "msg_replay": `{"channel":"all"}`, "msg_channels": `{}`,
			"msg_channel_request": `{"channel":"board","agent":"alice","change":"join","reason":"x"}`,
		} {
			refusedSaying(t, c, name, in, deny.MessageUnavailable, "what was queued is kept")
		}
		s.up("alice")
		s.linked()
	})
	t.Run("a queue that critical messages fill, of which none gives way", func(t *testing.T) {
		drafts := make([]string, adapter.QueueSize)
		for i := range drafts {
			drafts[i] = fmt.Sprintf(`{"idempotency_key":%q,"to":"alice2","type":"escalation","body":%d}`, draftkey.New(), i)
		}
		for some := range slices.Chunk(drafts, 100) {
			if status, _, text := s.do("POST", "/v1/messages:batch", `{"messages":[`+strings.Join(some, ",")+`]}`); status != 207 || strings.Count(text, `"status":201`) != len(some) {
				t.Fatalf("%d %.300s", status, text)
			}
		}
		refusedSaying(t, c, "msg_send", `{"to":"alice2","type":"escalation","body":0}`, deny.MessageQueueFull, "retryAfter")
	})
	t.Run("more bytes than the manifest lets wait", func(t *testing.T) {
		large := `{"to":"bob","type":"note","body":"` + strings.Repeat("x", senderBytes/2) + `"}`
		c.Do("msg_send", large)
		refusedSaying(t, c, "msg_send", large, deny.MessageQuota, "retryAfter")
	})
	t.Run("an agent whose manifest names other tools has none of these", func(t *testing.T) {
		table, err := tool.NewTable(s.m.Tools()...)
		if err != nil {
			t.Fatal(err)
		}
		c.Calls = tool.New(tool.Config{Table: table, Journal: tooltest.Store(t, nil), Allowed: []string{"mem"}, Rate: tooltest.Rate})
		for _, one := range s.m.Tools() {
			refusedSaying(t, c, one.Name, `{}`, deny.ToolNotAllowed, one.Name)
		}
	})
}

// refusedSaying makes a call that must be refused with the code, and with a word
// about what is wrong and how to mend it.
func refusedSaying(t *testing.T, c tooltest.Caller, name, in string, code deny.Code, says string) {
	t.Helper()
	out, reason := c.Try(name, in)
	if reason == nil || reason.Code != code {
		t.Errorf("%s %.100s: %s, %v; want %s", name, in, out, reason, code)
		return
	}
	raw, err := json.Marshal(reason.Envelope())
	if err != nil || !strings.Contains(string(raw), says) {
		t.Errorf("%s %.100s: %v %s says nothing of %q", name, in, err, raw, says)
	}
	if reason.Mend == "" {
		t.Errorf("%s %.100s: %s names no mend", name, in, raw)
	}
}
