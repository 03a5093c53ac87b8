package event

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool/tooltest"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/topictest"
)

var policy = topic.Policy{
	"builds": {Publish: []string{"ci"}, Read: []string{"lead"}, Storage: topic.DefaultStorage},
	"chat":   {Publish: []string{"ci", "lead"}, Read: []string{"ci", "lead"}, Storage: topic.DefaultStorage},
}

// two gives two agents' tools, each with a store of its own.
func two(t *testing.T) (ci, lead tooltest.Caller, leads *Events) {
	t.Helper()
	_, ways := topictest.Team(t, policy, "ci", "lead")
	open := func(agent string) (tooltest.Caller, *Events) {
		s := tooltest.Store(t, nil)
		e, err := Open(t.Context(), s, ways[agent])
		if err != nil {
			t.Fatal(err)
		}
		return tooltest.New(t, s, e.Tools()...), e
	}
	ci, _ = open("ci")
	lead, leads = open("lead")
	return ci, lead, leads
}

func TestAPublicTopicReachesAnotherAgent(t *testing.T) {
	ci, lead, _ := two(t)
	lead.Do("events_subscribe", `{"topic":"public/builds"}`)
	if got := ci.Do("events_publish", `{"topic":"public/builds","message":{"ok":true,"from":"lead"}}`); got != `{"messageId":"public/builds#1","seq":1,"topic":"public/builds"}` {
		t.Error(got)
	}
	got := lead.Do("events_poll", `{"topic":"public/builds","wait":30}`)
	var p Polled
	if err := json.Unmarshal([]byte(got), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Messages) != 1 || p.Messages[0].From != "ci" || p.Messages[0].Topic != "public/builds" || string(p.Messages[0].Body) != `{"ok":true,"from":"lead"}` || p.Position != 1 {
		t.Error(got)
	}
	if got := lead.Do("events_poll", `{"topic":"public/builds"}`); !strings.Contains(got, `"messages":[]`) {
		t.Errorf("it was given again: %s", got)
	}
	if got := lead.Do("events_poll", `{"topic":"public/builds","after":0}`); !strings.Contains(got, `"from":"ci"`) {
		t.Error(got)
	}
	if got := lead.Do("events_unsubscribe", `{"topic":"public/builds"}`); !strings.Contains(got, `"unsubscribed":true`) {
		t.Error(got)
	}
	// An agent's own topic of that name is another one.
	ci.Do("events_publish", `{"topic":"builds","message":"own"}`)
	lead.Denied(deny.ToolMissing, "events_poll", `{"topic":"builds"}`)
	const want = `{"publicTopics":[{"topic":"public/builds","publish":true,"read":false,"last":0,"messages":0,"subscriptions":[]},` +
		`{"topic":"public/chat","publish":true,"read":true,"last":0,"messages":0,"subscriptions":[]}],` +
		`"topics":[{"topic":"builds","last":1,"messages":1,"subscriptions":[]}]}`
	if got := ci.Do("events_list_topics", `{}`); got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
}

func TestWhatTheManifestDoesNotNameIsRefused(t *testing.T) {
	ci, lead, _ := two(t)
	lead.Denied(deny.ToolNotAllowed, "events_publish", `{"topic":"public/builds","message":1}`)
	lead.Denied(deny.ToolNotAllowed, "events_publish", `{"topic":"public/none","message":1}`)
	lead.Denied(deny.ToolInvalid, "events_publish", `{"topic":"public/a/b","message":1}`)
	lead.Denied(deny.ToolInvalid, "events_publish", `{"topic":"public/","message":1}`)
	for _, name := range []string{"events_subscribe", "events_poll", "events_unsubscribe"} {
		ci.Denied(deny.ToolNotAllowed, name, `{"topic":"public/builds"}`)
	}
	none, _, _, _ := start(t, 0)
	none.Denied(deny.ToolNotAllowed, "events_publish", `{"topic":"public/builds","message":1}`)
	none.Denied(deny.ToolNotAllowed, "events_poll", `{"topic":"public/builds"}`)
}

func TestAStreamGivesWhatAnotherAgentPublishes(t *testing.T) {
	ci, lead, leads := two(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := leads.ServeStream(w, r, r.URL.Query().Get("topic"), "default"); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
		}
	}))
	defer srv.Close()
	lead.Do("events_subscribe", `{"topic":"public/chat"}`)
	ci.Do("events_publish", `{"topic":"public/chat","message":0}`)
	a, err := http.Get(srv.URL + "/?topic=public/chat")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	lines := bufio.NewScanner(a.Body)
	n := 0
	for n < 3 && lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var m Message
		if err := json.Unmarshal([]byte(data), &m); err != nil || m.From != "ci" || string(m.Body) != string(rune('0'+n)) {
			t.Fatalf("%s, %v", data, err)
		}
		n++
		ci.Do("events_publish", `{"topic":"public/chat","message":`+string(rune('0'+n))+`}`)
	}
	if n != 3 {
		t.Errorf("the stream ended after %d messages", n)
	}
}
