package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/tooltest"
)

func TestTheOperatorIsToldOnOneLine(t *testing.T) {
	var log bytes.Buffer
	s := tooltest.Store(t, nil)
	c := tooltest.New(t, s, New(Config{Team: "t", Agent: "a", Log: record.NewLog("t", &log)}).Tools()...)
	c.Do("notify_send", map[string]any{"subject": "disk", "message": "90 %\n\x1b[31mfull\u202e"})
	var r record.Record
	if err := json.Unmarshal(log.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Kind != record.Life || r.Target != "notice" || r.Detail != "disk: 90 % [31mfull" || r.Agent != "a" {
		t.Errorf("%+v", r)
	}
	all, err := s.Spool().Next(t.Context(), 0, 10)
	if err != nil || len(all) != 2 || strings.Contains(string(all[0].Record)+string(all[1].Record), "full") {
		t.Errorf("%+v, %v: started and allowed, without the text", all, err)
	}
	c.Denied(deny.ToolNotAllowed, "notify_send", `{"channel":"webhook","to":"https://x.example/","message":"m"}`)
	c.Denied(deny.ToolInvalid, "notify_send", `{"channel":"mail","message":"m"}`)
}

func TestAWebhookIsPostedToThroughTheDialerAndNoRedirectIsFollowed(t *testing.T) {
	var got Notice
	status, redirected := http.StatusNoContent, false
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			redirected = true
		}
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &got)
		if status == http.StatusFound {
			w.Header().Set("Location", "/away")
		}
		w.WriteHeader(status)
	}))
	defer srv.Close()
	listed := "https://hooks.example.com/x"
	var dialled []string
	no := &deny.Reason{Layer: deny.LayerEgress, Code: deny.NotListed, What: "w", Why: "y", Mend: "m"}
	refuse := false
	client := srv.Client()
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		if refuse {
			return nil, no
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}
	client.Transport.(*http.Transport).TLSClientConfig.ServerName = "example.com" // what httptest's certificate is for
	client.Transport.(*http.Transport).DisableKeepAlives = true
	n := New(Config{Team: "t", Agent: "a", Webhooks: []string{listed}, Log: record.NewLog("t", io.Discard), Way: client.Transport})
	c := tooltest.New(t, tooltest.Store(t, nil), n.Tools()...)
	c.Do("notify_send", `{"channel":"webhook","message":"hello","subject":"s"}`)
	if got.Message != "hello" || got.Agent != "a" || got.Team != "t" || got.Subject != "s" || len(dialled) != 1 || dialled[0] != "hooks.example.com:443" {
		t.Errorf("%+v by %v", got, dialled)
	}
	status = http.StatusFound
	c.Denied(deny.ToolUnavailable, "notify_send", `{"channel":"webhook","message":"hello"}`)
	if redirected {
		t.Error("a redirect was followed")
	}
	refuse = true
	c.Denied(deny.NotListed, "notify_send", `{"channel":"webhook","message":"hello"}`)
	c.Denied(deny.ToolNotAllowed, "notify_send", `{"channel":"webhook","message":"hello","to":"`+listed+`?x"}`)
}

type wayOf func(*http.Request) (*http.Response, error)

func (w wayOf) RoundTrip(q *http.Request) (*http.Response, error) { return w(q) }

// Who has the URL of a webhook can post to it.
func TestAWebhooksPathIsNowhereButInItsRequest(t *testing.T) {
	const listed, other = "https://hooks.example.com/services/SECRET?key=SECRET", "https://hooks.example.com/services/OTHER-SECRET"
	var fail error
	way := wayOf(func(q *http.Request) (*http.Response, error) {
		if fail != nil {
			return nil, fail
		}
		return &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {"https://x/%zz?SECRET"}}, Body: http.NoBody, Request: q}, nil
	})
	var log bytes.Buffer
	s := tooltest.Store(t, nil)
	c := tooltest.New(t, s, New(Config{Team: "t", Agent: "a", Webhooks: []string{listed, other}, Log: record.NewLog("t", &log), Way: way}).Tools()...)
	var said []string
	try := func(to string) {
		out, reason := c.Try("notify_send", map[string]any{"channel": "webhook", "message": "m", "to": to})
		said = append(said, out)
		if reason != nil {
			said = append(said, reason.Error())
		}
	}
	try(other)
	try("https://user:SECRET@hooks.example.com/SECRET")
	fail = errors.New(`malformed HTTP response "SECRET"`)
	try(listed)
	all, err := s.Spool().Next(t.Context(), 0, 100)
	if err != nil || len(all) < 5 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	for _, one := range all {
		said = append(said, string(one.Record))
	}
	text := strings.Join(append(said, log.String()), "\n")
	if strings.Contains(text, "SECRET") || !strings.Contains(text, "https://hooks.example.com (tools.webhooks[1])") {
		t.Errorf("%s", text)
	}
}

// A grant is for who was told, and not for whoever is listed.
func TestScopeIsWhoIsTold(t *testing.T) {
	one, two := "https://a.example/x", "https://b.example/x"
	for _, k := range []struct {
		listed []string
		in     tool.Input
		want   string
	}{
		{nil, tool.Input{"channel": "operator"}, "operator"},
		{nil, tool.Input{"channel": "webhook"}, ""},
		{[]string{one}, tool.Input{"channel": "webhook"}, one},
		{[]string{one, two}, tool.Input{"channel": "webhook"}, ""},
		{[]string{one, two}, tool.Input{"channel": "webhook", "to": two}, two},
		{[]string{one}, tool.Input{"channel": "webhook", "to": "operator"}, ""},
	} {
		got, reason := New(Config{Agent: "a", Webhooks: k.listed}).Tools()[0].Scope(k.in)
		if got != k.want || (got == "") != (reason != nil) || reason != nil && reason.Code != deny.ToolNotAllowed {
			t.Errorf("%v %v: %q, %v", k.listed, k.in, got, reason)
		}
	}
}
