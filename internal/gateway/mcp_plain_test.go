package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"bulkhead/internal/deny"
	"bulkhead/internal/jsonscan"
	"bulkhead/internal/team"
	"bulkhead/internal/tool"
	"bulkhead/internal/tooltoken"
)

// talk is a connection whose requests are written by hand.
type talk struct {
	t  testing.TB
	c  net.Conn
	in *bufio.Reader
}

func newTalk(t testing.TB, socket string) *talk {
	c := asRuntime(t, socket)
	t.Cleanup(func() { _ = c.Close() })
	return &talk{t, c, bufio.NewReader(c)}
}

// say sends a request and gives the answer's status, fields and body.
func (k *talk) say(method, path, body string, fields ...string) (answer string, h http.Header) {
	k.t.Helper()
	_ = k.c.SetDeadline(time.Now().Add(30 * time.Second))
	_, err := fmt.Fprintf(k.c, "%s %s HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s",
		method, path, tooltoken.Of(runtimeToken+"writer"), strings.Join(append(fields, ""), "\r\n"), len(body), body)
	if err != nil {
		k.t.Fatal(err)
	}
	r, err := http.ReadResponse(k.in, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	r.Header.Del("Date")
	r.Header.Del("Content-Length") // net/http sends what is long in chunks
	return fmt.Sprintf("%d %q %s", r.StatusCode, r.Header, b), r.Header
}

const (
	mcpAccept  = "Accept: application/json, text/event-stream"
	mcpType    = "Content-Type: application/json"
	mcpVersion = "Mcp-Protocol-Version: 2025-06-18"
)

// begin opens a session and gives the field that names it.
func (k *talk) begin() string {
	k.t.Helper()
	_, h := k.say("POST", "/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, mcpAccept, mcpType)
	id := h.Get("Mcp-Session-Id")
	if id == "" {
		k.t.Fatal("no session began")
	}
	session := "Mcp-Session-Id: " + id
	if got, _ := k.say("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, mcpAccept, mcpType, mcpVersion, session); !strings.HasPrefix(got, "202 ") {
		k.t.Fatal(got)
	}
	return session
}

func callOf(id, name, arguments string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `","arguments":` + arguments + `}}`
}

// TestMCPIsAnsweredAsTheSDKDoes says the same by a connection whose plain calls are
// answered without the SDK, and by one that is net/http's.
func TestMCPIsAnsweredAsTheSDKDoes(t *testing.T) {
	_, socket, _ := startTools(t, "writer", &team.Tools{Allow: []string{"mem", "db"}, RatePerMinute: 10_000})
	get := callOf("1", "mem_get", `{"key":"a"}`)
	all := []string{mcpAccept, mcpType, mcpVersion}
	for name, c := range map[string]struct {
		body   string
		fields []string
		other  string // session, when not one that is open
	}{
		"a call":                    {body: get, fields: all},
		"a name with the prefix":    {body: callOf("1", "agentos.mem_get", `{"key":"a"}`), fields: all},
		"an effect":                 {body: callOf(`"x-1"`, "mem_set", `{"key":"b","value":{"t":"a\"b\\c<d>&e"}}`), fields: all},
		"what has to be escaped":    {body: callOf("1", "mem_get", `{"key":"odd"}`), fields: all},
		"white space":               {body: " " + strings.ReplaceAll(get, ",", " ,\n ") + " ", fields: all},
		"an id that is odd":         {body: callOf(`"<a>"`, "mem_get", `{"key":"a"}`), fields: all},
		"an id with an escape":      {body: callOf(`"\u0041"`, "mem_get", `{"key":"a"}`), fields: all},
		"an id below zero":          {body: callOf("-1", "mem_get", `{"key":"a"}`), fields: all},
		"an id that is no integer":  {body: callOf("1.5", "mem_get", `{"key":"a"}`), fields: all},
		"an id with an exponent":    {body: callOf("1e3", "mem_get", `{"key":"a"}`), fields: all},
		"an id that is too large":   {body: callOf("12345678901234567890", "mem_get", `{"key":"a"}`), fields: all},
		"no id":                     {body: `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"mem_get","arguments":{"key":"a"}}}`, fields: all},
		"id null":                   {body: callOf("null", "mem_get", `{"key":"a"}`), fields: all},
		"another version":           {body: strings.Replace(get, "2.0", "2.1", 1), fields: all},
		"no version":                {body: strings.Replace(get, `"jsonrpc":"2.0",`, "", 1), fields: all},
		"a member twice":            {body: strings.Replace(get, `"id":1`, `"id":1,"id":2`, 1), fields: all},
		"a name twice":              {body: strings.Replace(get, `"name":"mem_get"`, `"name":"mem_get","name":"mem_set"`, 1), fields: all},
		"a name twice, escaped":     {body: strings.Replace(get, `"key":"a"}`, `"key":"a"},"\u006eame":"mem_set"`, 1), fields: all},
		"an unknown member":         {body: strings.Replace(get, `"id":1`, `"id":1,"x":2`, 1), fields: all},
		"another case":              {body: strings.Replace(get, `"method"`, `"Method"`, 1), fields: all},
		"a method with an escape":   {body: strings.Replace(get, "tools/call", `tools\/call`, 1), fields: all},
		"_meta":                     {body: strings.Replace(get, `"name"`, `"_meta":{"progressToken":1},"name"`, 1), fields: all},
		"_meta of the next version": {body: strings.Replace(get, `"name"`, `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},"name"`, 1), fields: all},
		"no arguments":              {body: strings.Replace(get, `,"arguments":{"key":"a"}`, "", 1), fields: all},
		"arguments null":            {body: callOf("1", "mem_get", "null"), fields: all},
		"arguments that are a list": {body: callOf("1", "mem_get", "[]"), fields: all},
		"no params":                 {body: `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, fields: all},
		"bad input":                 {body: callOf("1", "mem_get", `{"kee":"a","key":1}`), fields: all},
		"input that is no UTF-8":    {body: callOf("1", "mem_get", "{\"key\":\"\xff\"}"), fields: all},
		"deep input":                {body: callOf("1", "mem_set", `{"key":"d","value":`+strings.Repeat("[", 1100)+strings.Repeat("]", 1100)+`}`), fields: all},
		"a tool that is not given":  {body: callOf("1", "vec_query", `{}`), fields: all},
		"a tool that may take long": {body: callOf("1", "db_query", `{"sql":"SELECT 1"}`), fields: all},
		"no such tool":              {body: callOf("1", "mem_shred", `{}`), fields: all},
		"something behind":          {body: get + "{}", fields: all},
		"a batch":                   {body: "[" + get + "]", fields: all},
		"nothing":                   {body: "", fields: all},
		"no JSON":                   {body: "hello", fields: all},
		"what came before MCP":      {body: `{"tool":"mem_get","input":{"key":"a"}}`, fields: all},
		"ping":                      {body: `{"jsonrpc":"2.0","id":1,"method":"ping"}`, fields: all},
		"the list":                  {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, fields: all},
		"what there is not":         {body: `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, fields: all},
		"a method of nobody's":      {body: `{"jsonrpc":"2.0","id":1,"method":"x/y"}`, fields: all},
		"discovery":                 {body: `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, fields: all},
		"no Accept":                 {body: get, fields: []string{mcpType, mcpVersion}},
		"half an Accept":            {body: get, fields: []string{"Accept: application/json", mcpType, mcpVersion}},
		"two Accepts":               {body: get, fields: []string{"Accept: application/json", "Accept: text/event-stream", mcpType, mcpVersion}},
		"another type":              {body: get, fields: []string{mcpAccept, "Content-Type: text/plain", mcpVersion}},
		"no protocol version":       {body: get, fields: []string{mcpAccept, mcpType}},
		"an unknown version":        {body: get, fields: []string{mcpAccept, mcpType, "Mcp-Protocol-Version: 1999-01-01"}},
		"the next version":          {body: get, fields: []string{mcpAccept, mcpType, "Mcp-Protocol-Version: 2026-07-28"}},
		"a method in the head":      {body: get, fields: append([]string{"Mcp-Method: tools/list"}, all...)},
		"an event's id":             {body: get, fields: append([]string{"Last-Event-ID: 1"}, all...)},
		"a page of another site":    {body: get, fields: append([]string{"Origin: https://x.example"}, all...)},
		"a page of this one":        {body: get, fields: append([]string{"Origin: http://localhost"}, all...)},
		"no session":                {body: get, fields: all, other: "X: y"},
		"a session of nobody's":     {body: get, fields: all, other: "Mcp-Session-Id: AAAA"},
	} {
		t.Run(name, func(t *testing.T) {
			plain, whole := newTalk(t, socket), newTalk(t, socket)
			whole.say("GET", "/v1/health", "") // from here on it is net/http's
			session := plain.begin()
			// The SDK has to have seen a call before any is answered here.
			plain.say("POST", "/mcp", callOf("7", "mem_set", `{"key":"odd","value":"ä<\u2028\" \\"}`), append(all, session)...)
			if c.other != "" {
				session = c.other
			}
			fields := append(append([]string{}, c.fields...), session)
			got, gotHead := plain.say("POST", "/mcp", c.body, fields...)
			want, wantHead := whole.say("POST", "/mcp", c.body, fields...)
			for _, h := range []http.Header{gotHead, wantHead} { // each begins one of its own
				if id := h.Get("Mcp-Session-Id"); id != "" {
					got, want = strings.ReplaceAll(got, id, "ID"), strings.ReplaceAll(want, id, "ID")
				}
			}
			if got != want {
				t.Errorf("%q is answered\n%.1000s\nand by the SDK\n%.1000s", c.body, got, want)
			}
			// Whatever it was, the connection goes on.
			if got, _ := plain.say("POST", "/v1/tools/mem_get", `{"key":"none"}`); !strings.HasPrefix(got, "200 ") {
				t.Error(got)
			}
		})
	}
}

// TestASessionThatEndedIsAnsweredByNobody: also when calls were answered without
// the SDK before, and by none but its owner while it lasts.
func TestASessionThatEndedIsAnsweredByNobody(t *testing.T) {
	_, socket, _ := startTools(t, "writer", &team.Tools{RatePerMinute: 10_000})
	k := newTalk(t, socket)
	session := k.begin()
	fields := []string{mcpAccept, mcpType, mcpVersion, session}
	for i := range 5 {
		if got, _ := k.say("POST", "/mcp", callOf(fmt.Sprint(i), "mem_get", `{"key":"a"}`), fields...); !strings.Contains(got, `"structuredContent":{"key":"a","value":null}`) {
			t.Fatal(got)
		}
	}
	if got, _ := newTalk(t, socket).say("DELETE", "/mcp", "", fields...); !strings.HasPrefix(got, "204 ") {
		t.Fatal(got)
	}
	if got, _ := k.say("POST", "/mcp", callOf("9", "mem_get", `{"key":"a"}`), fields...); !strings.HasPrefix(got, "404 ") {
		t.Error(got)
	}
}

// TestTheSDKSeesASessionOnceInAWhile: it ends those that it sees nothing of.
func TestTheSDKSeesASessionOnceInAWhile(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "t"}, nil)
	here, _ := mcp.NewInMemoryTransports()
	session, err := server.Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{"Accept": {"a"}, "Content-Type": {"b"}, "Mcp-Session-Id": {"s"}}
	shape, _ := shapeOf(h)
	r := &http.Request{Header: h}
	known := func(user, shape string, ago time.Duration) bool {
		m := mcpSessions{by: map[string]*mcpSession{"s": {session, user, shape, time.Now().Add(-ago)}}}
		return m.takes(server, r, "u")
	}
	for _, c := range []struct {
		name string
		got  bool
		want bool
	}{
		{"one that was just seen", known("u", shape, 0), true},
		{"a minute ago", known("u", shape, sessionFresh+time.Second), false},
		{"of another user", known("v", shape, 0), false},
		{"of another shape", known("u", "c", 0), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", c.name, c.got)
		}
	}
	_ = session.Close()
	if known("u", shape, 0) {
		t.Error("a session that was closed is known")
	}
}

// FuzzReadCall holds that a call that is answered here is what the SDK would read,
// and that the answer is what the SDK would write.
func FuzzReadCall(f *testing.F) {
	for _, s := range []string{
		callOf("1", "mem_get", `{"key":"a"}`), callOf(`"a"`, "mem_set", `{"a":[{"b":"\""}]}`), callOf("007", "x", "{}"), callOf("1", "x", `{}`) + " ",
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{},"\u006eame":"b"}}`, strings.ToUpper(callOf("1", "x", "{}")),
	} {
		f.Add([]byte(s), []byte(`{"key":"a","value":"<\\\""}`))
	}
	f.Fuzz(func(t *testing.T, body, out []byte) {
		c, only, ok := readCall(body)
		if only && !ok {
			t.Error("it is a call and is none")
		}
		if !only {
			return
		}
		m, err := jsonrpc.DecodeMessage(body)
		q, isRequest := m.(*jsonrpc.Request)
		if err != nil || !isRequest || !q.IsCall() || q.Method != "tools/call" {
			t.Fatalf("%q: %v, %v", body, m, err)
		}
		var p mcp.CallToolParamsRaw
		if err := json.Unmarshal(q.Params, &p); err != nil || p.Name != string(c.name) || !bytes.Equal(p.Arguments, c.arguments) {
			t.Fatalf("%q: %+v, %v", body, p, err)
		}
		if !jsonscan.Valid(out) {
			return
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, out); err != nil {
			t.Fatal(err)
		}
		for _, reason := range []*deny.Reason{nil, tool.Refuse(deny.ToolInvalid, "w", "y", "m<"), tool.Refuse(deny.ToolUnknown, "w", "y", "m")} {
			var value any
			if err := json.Unmarshal(c.id, &value); err != nil {
				t.Fatal(err)
			}
			id, err := jsonrpc.MakeID(value)
			if err != nil {
				t.Fatal(err)
			}
			want := jsonrpc.Response{ID: id}
			result, err := resultOf(compact.Bytes(), reason)
			if want.Error = err; err == nil {
				if want.Result, err = json.Marshal(result); err != nil {
					t.Fatal(err)
				}
			} else if !errors.As(err, new(*jsonrpc.Error)) {
				t.Fatal(err)
			}
			text, err := jsonrpc.EncodeMessage(&want)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := answerTo(c.id, compact.Bytes(), reason); err != nil || !bytes.Equal(got, text) {
				t.Fatalf("answered %s, %v; want %s", got, err, text)
			}
		}
	})
}

// What the SDK was given stays its own: a notification may be at work when the
// connection's next request, of the same head but for its length, is read. Nothing
// of one shows in the other, also for the race detector.
func TestNotificationsKeepTheirRequest(t *testing.T) {
	_, socket, _ := startTools(t, "writer", &team.Tools{Allow: []string{"mem"}, RatePerMinute: 10_000})
	k := newTalk(t, socket)
	session := k.begin()
	fields := []string{mcpAccept, mcpType, mcpVersion, session}
	for i := range 200 {
		reason := strings.Repeat("x", i%40)
		if got, _ := k.say("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+strconv.Itoa(1000+i)+`,"reason":"`+reason+`"}}`, fields...); !strings.HasPrefix(got, "202 ") {
			t.Fatal(got)
		}
		// With _meta the SDK answers, without it the gateway does.
		id := strconv.Itoa(1 + i)
		call := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"_meta":{},"name":"mem_get","arguments":{"key":"` + reason + `a"}}}`
		if i%2 == 0 {
			call = callOf(id, "mem_get", `{"key":"`+reason+`a"}`)
		}
		if got, _ := k.say("POST", "/mcp", call, fields...); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"id":`+id+`,`) {
			t.Fatal(got)
		}
	}
}
