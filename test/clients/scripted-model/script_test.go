package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestScriptIsFollowedCallByCall(t *testing.T) {
	const prompt = `{"role":"user","content":[{"type":"text","text":"please\nCALL bash {\"command\":\"id\"}\n  CALL read {\"path\":\"x\"}"}]}`
	for name, c := range map[string]struct{ messages, tool, text string }{
		"first call":  {prompt, "bash", ""},
		"second call": {prompt + `,{"role":"assistant","content":null},{"role":"tool","content":"uid=1000"}`, "read", ""},
		"the end":     {prompt + `,{"role":"tool","content":"uid=1000\n"},{"role":"tool","content":"y"}`, "", "FINAL: uid=1000 | y"},
		"no script":   {`{"role":"user","content":"hello"}`, "", "FINAL: "},
	} {
		t.Run(name, func(t *testing.T) {
			for _, stream := range []string{"true", "false"} {
				body := `{"model":"scripted-1","stream":` + stream + `,"messages":[` + c.messages + `]}`
				w := httptest.NewRecorder()
				(&model{log: io.Discard}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body)))
				if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), c.tool) || !strings.Contains(w.Body.String(), c.text) {
					t.Errorf("stream %s: %d %s", stream, w.Code, w.Body.String())
				}
				if ended := strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n"); ended != (stream == "true") {
					t.Errorf("stream %s ends with %q", stream, w.Body.String())
				}
			}
		})
	}
}

func FuzzConversation(f *testing.F) {
	f.Add([]byte(`{"stream":true,"messages":[{"role":"user","content":"CALL a {}"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var c conversation
		if json.Unmarshal(body, &c) != nil {
			return
		}
		if a := c.answer(); a.Tool == "" && !strings.HasPrefix(a.Text, "FINAL: ") {
			t.Errorf("answer is %+v", a)
		}
	})
}
