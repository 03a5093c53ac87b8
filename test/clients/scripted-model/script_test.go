package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// spoken is one conversation in the words of each API.
var spoken = map[string]struct {
	tools                 string
	user, called, results string // one message each; %s is a JSON string
	body                  string // %t stream, %s tools, %s messages
	end                   string // of a stream
}{
	"/v1/chat/completions": {
		tools:   `[{"type":"function","function":{"name":"bash"}},{"type":"function","function":{"name":"read"}}]`,
		user:    `{"role":"user","content":[{"type":"text","text":%s}]}`,
		called:  `{"role":"assistant","content":null}`,
		results: `{"role":"tool","content":%s}`,
		body:    `{"model":"scripted-1","stream":%t,"tools":%s,"messages":[%s]}`,
		end:     "data: [DONE]\n\n",
	},
	"/v1/messages": {
		tools:   `[{"name":"bash","input_schema":{}},{"name":"read","input_schema":{}}]`,
		user:    `{"role":"user","content":%s}`,
		called:  `{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"bash","input":{}}]}`,
		results: `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":%s}]}]}`,
		body:    `{"model":"scripted-1","stream":%t,"tools":%s,"messages":[%s]}`,
		end:     "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
	},
	"/v1/responses": {
		tools:   `[{"type":"function","name":"bash"},{"type":"custom","name":"read"}]`,
		user:    `{"type":"message","role":"user","content":[{"type":"input_text","text":%s}]}`,
		called:  `{"type":"function_call","call_id":"c","name":"bash","arguments":"{}"}`,
		results: `{"type":"function_call_output","call_id":"c","output":%s}`,
		body:    `{"model":"scripted-1","stream":%t,"tools":%s,"input":[%s]}`,
		end:     "}\n\n",
	},
}

func TestScriptIsFollowedCallByCallInEachAPI(t *testing.T) {
	quote := func(format, s string) string {
		b, _ := json.Marshal(s)
		return fmt.Sprintf(format, b)
	}
	const script = "[Mon 10:00] please CALL bash {\"command\":\"id\"}\n  CALL read {\"input\":\"x\"}"
	for path, s := range spoken {
		first := quote(s.user, script)
		second := first + "," + s.called + "," + quote(s.results, "uid=1000")
		for name, c := range map[string]struct{ messages, tools, tool, text string }{
			"first call":    {first, s.tools, "bash", ""},
			"second call":   {second, s.tools, "read", ""},
			"the end":       {second + "," + s.called + "," + quote(s.results, "y\n"), s.tools, "", "FINAL: uid=1000 | y"},
			"no script":     {quote(s.user, "hello"), s.tools, "", "FINAL: "},
			"no tools":      {first, "[]", "", "FINAL: the script calls bash, of the tools "},
			"broken script": {quote(s.user, `CALL bash {"a": }`), s.tools, "", "FINAL: the script calls bash"},
		} {
			for _, stream := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s %s stream=%t", path, name, stream), func(t *testing.T) {
					w := ask(path, fmt.Sprintf(s.body, stream, c.tools, c.messages))
					if w.Code != http.StatusOK {
						t.Fatalf("%d %s", w.Code, w.Body)
					}
					if got := strings.Contains(w.Body.String(), `"name":"`+c.tool+`"`); got != (c.tool != "") {
						t.Errorf("tool %q: %s", c.tool, w.Body)
					}
					if !strings.Contains(w.Body.String(), c.text) {
						t.Errorf("text %q: %s", c.text, w.Body)
					}
					if ended := strings.HasSuffix(w.Body.String(), s.end); stream && !ended {
						t.Errorf("ends with %q", w.Body)
					}
				})
			}
		}
	}
}

func ask(path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	(&model{log: io.Discard}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return w
}

func TestOtherRequestsAreRefused(t *testing.T) {
	for path, want := range map[string]int{"/v1/embeddings": http.StatusNotFound, "/v1/messages/count_tokens": http.StatusNotFound, "/v1/messages": http.StatusBadRequest} {
		if w := ask(path, "nonsense"); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}

func FuzzConversation(f *testing.F) {
	f.Add("/v1/chat/completions", []byte(`{"stream":true,"tools":[{"function":{"name":"a"}}],"messages":[{"role":"user","content":"CALL a {}"}]}`))
	f.Add("/v1/messages", []byte(`{"stream":true,"tools":[{"name":"a"}],"messages":[{"role":"user","content":"CALL a {}"}]}`))
	f.Add("/v1/responses", []byte(`{"stream":true,"tools":[{"name":"a","type":"custom"}],"input":"CALL a {}"}`))
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		speaks := apiOf(path)
		if speaks == nil {
			return
		}
		c, err := speaks.read(body)
		if err != nil {
			return
		}
		a := c.answer()
		if a.Tool == "" && !strings.HasPrefix(a.Text, "FINAL: ") {
			t.Errorf("answer is %+v", a)
		}
		if _, err := json.Marshal(speaks.whole("1", c, a)); err != nil {
			t.Error(err)
		}
		for _, e := range speaks.events("1", c, a) {
			if _, err := json.Marshal(e.data); err != nil {
				t.Error(err)
			}
		}
	})
}
