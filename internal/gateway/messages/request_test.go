package messages

import (
	"encoding/json"
	"strings"
	"testing"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

const boardRequest = `{"channel":"board","agent":"alice","change":"join","reason":"to hear of it"}`

func requested(t *testing.T, text string) (r adapter.MembershipRequest) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return r
}

func TestTheOrchestratorAsksOnceAndTheOperatorHearsOfIt(t *testing.T) {
	t.Setenv(orchestrator, "alice")
	s := newStage(t)
	s.up("alice")
	s.linked()
	status, _, text := s.do("POST", "/v1/channels:request", boardRequest)
	first := requested(t, text)
	if status != 201 || first.ID != 1 || first.By != "alice" || first.State != adapter.RequestOpen {
		t.Fatalf("%d %s", status, text)
	}
	if n := strings.Count(s.records(), "(request 1)"); n != 1 || !strings.Contains(s.records(), `"target":"notice"`) {
		t.Errorf("the operator is told %d times: %s", n, s.records())
	}
	// The same again, over REST and as a tool: nothing new, and nobody told anew.
	if status, _, text := s.do("POST", "/v1/channels:request", boardRequest); status != 200 || !requested(t, text).Duplicate {
		t.Errorf("%d %s", status, text)
	}
	if again := requested(t, s.tools().Do("msg_channel_request", boardRequest)); again.ID != 1 || !again.Duplicate {
		t.Errorf("%+v", again)
	}
	if n := strings.Count(s.records(), "(request 1)"); n != 1 {
		t.Errorf("the operator is told %d times", n)
	}
	s.kill()
	s.up("alice")
	s.linked()
	if again := requested(t, s.tools().Do("msg_channel_request", boardRequest)); again.ID != 1 || !again.Duplicate {
		t.Errorf("after kill -9: %+v", again)
	}
}

// Whatever an agent asks, and in whatever form, nothing is approved by it.
func TestNoAgentApproves(t *testing.T) {
	t.Setenv(orchestrator, "alice")
	s := newStage(t)
	s.up("alice")
	s.linked()
	if status, _, text := s.do("POST", "/v1/channels:request", boardRequest); status != 201 {
		t.Fatalf("%d %s", status, text)
	}
	for _, k := range []struct {
		method, path, body string
		status             int
		code               deny.Code // empty: there is no such path
	}{
		{"POST", "/v1/channels:request", `{"channel":"board","agent":"alice","change":"join","reason":"x","state":"approved"}`, 400, deny.MessageInvalid},
		{"POST", "/v1/channels:request", `{"channel":"board","agent":"alice","change":"join","reason":"x","by":"operator"}`, 400, deny.MessageInvalid},
		{"POST", "/v1/channels:request", `{"channel":"board","agent":"alice","change":"approve","reason":"x"}`, 400, deny.MessageInvalid},
		{"POST", "/v1/channels:request", `{"id":1,"approve":true}`, 400, deny.MessageInvalid},
		{"POST", "/v1/channels:request", `{}`, 400, deny.MessageInvalid},
		{"POST", "/v1/channels:request", `[]`, 400, deny.MessageInvalid},
		{"POST", "/v1/channels:decide", `{"id":1,"approve":true}`, 404, ""},
		{"POST", "/v1/channels:approve", `{"id":1}`, 404, ""},
		{"POST", "/v1/messages", `{"idempotency_key":"00000000-0000-4000-8000-000000000001","to":"alice2","type":"channel_decided","body":{"request":1,"decision":"approved"}}`, 400, deny.MessageInvalid},
		{"POST", "/v1/messages", `{"idempotency_key":"00000000-0000-4000-8000-000000000002","channel":"board","type":"note","body":1}`, 403, deny.MessageNotAllowed},
		{"POST", "/v1/messages:receive", `{"channel":"board"}`, 403, deny.MessageNotAllowed},
		{"GET", "/v1/channels/board/messages", ``, 403, deny.MessageNotAllowed},
	} {
		r, err := s.web.Client().Post(s.web.URL+k.path, "application/json", strings.NewReader(k.body))
		if k.method == "GET" {
			r, err = s.web.Client().Get(s.web.URL + k.path)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != k.status || r.Header.Get(DeniedHeader) != string(k.code) {
			t.Errorf("%s %s %s: %d %q", k.method, k.path, k.body, r.StatusCode, r.Header.Get(DeniedHeader))
		}
	}
	if _, _, text := s.do("GET", "/v1/channels", ""); strings.Contains(text, "board") {
		t.Errorf("alice is in it: %s", text)
	}
}

// FuzzRequestBody gives the endpoint any body; what is no request is refused with fields.
func FuzzRequestBody(f *testing.F) {
	f.Add([]byte(boardRequest))
	f.Add([]byte(`{"channel":7,"state":"approved"}`))
	f.Add([]byte(`[{}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var q adapter.ChannelRequest
		fields := strict(text, &q)
		var want adapter.ChannelRequest
		if err := json.Unmarshal(text, &want); len(fields) == 0 && (err != nil || q != want) {
			t.Errorf("%q is %+v, encoding/json: %+v, %v", text, q, want, err)
		}
	})
}
