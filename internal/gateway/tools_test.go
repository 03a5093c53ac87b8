package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"bulkhead/internal/deny"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
)

// runtimeOf is a client with the runtime's id and a token.
type runtimeOf struct {
	t      testing.TB
	client *http.Client
	token  string
}

// RoundTrip shows the token.
func (r runtimeOf) RoundTrip(q *http.Request) (*http.Response, error) {
	q.Header.Set("Authorization", "Bearer "+r.token)
	return r.client.Transport.RoundTrip(q)
}

func asClient(t testing.TB, socket, token string) runtimeOf {
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dialAsRuntime(socket) }}
	t.Cleanup(tr.CloseIdleConnections)
	return runtimeOf{t, &http.Client{Transport: tr}, token}
}

func (r runtimeOf) do(method, path, body string) (int, string) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), method, "http://gateway"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := r.RoundTrip(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.StatusCode, strings.TrimSpace(string(text))
}

func (r runtimeOf) call(name, input string) (int, string) {
	r.t.Helper()
	return r.do("POST", "/v1/tools/"+name, input)
}

func (r runtimeOf) mcp() *mcp.ClientSession {
	r.t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(r.t.Context(), &mcp.StreamableClientTransport{Endpoint: "http://gateway/mcp", HTTPClient: &http.Client{Transport: r}}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	return s
}

// startTools serves a gateway with tools.
func startTools(t testing.TB, agent string, tools *team.Tools) (runtimeOf, string, *lockedBuffer) {
	socket, records := serveGateway(t, func(dir string, cfg *Config) {
		cfg.Agent, cfg.Data, cfg.Tools, cfg.Token = agent, dir, tools, runtimeToken+agent
	})
	return asClient(t, socket, tooltoken.Of(runtimeToken+agent)), socket, records
}

func TestOneTableServesRESTAndMCP(t *testing.T) {
	r, _, _ := startTools(t, "writer", &team.Tools{RatePerMinute: 10_000})
	for _, c := range []struct{ name, input, want string }{
		{"mem_set", `{"key":"a","value":{"n":12345678901234567890}}`, `{"key":"a"}`},
		{"agentos.mem_get", `{"key":"a"}`, `{"key":"a","value":{"n":12345678901234567890}}`},
		{"mem_get", `{"key":"b"}`, `{"key":"b","value":null}`},
		{"mem_incr", `{"key":"n","by":5}`, `{"key":"n","value":5}`},
	} {
		if status, got := r.call(c.name, c.input); status != 200 || got != c.want {
			t.Errorf("REST %s: %d %s", c.name, status, got)
		}
	}
	if status, got := r.do("POST", "/mcp", `{"tool":"agentos.mem_get","input":{"key":"n"}}`); status != 200 || got != `{"key":"n","value":5}` {
		t.Errorf("the older body: %d %s", status, got)
	}
	s := r.mcp()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) < 10 {
		t.Fatalf("%v, %v", list, err)
	}
	out, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "mem_get", Arguments: map[string]any{"key": "n"}})
	if err != nil || out.IsError || out.Content[0].(*mcp.TextContent).Text != `{"key":"n","value":5}` {
		t.Errorf("MCP: %+v, %v", out, err)
	}
	out, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "mem_get", Arguments: map[string]any{"kee": 1}})
	if err != nil || !out.IsError || !strings.Contains(out.Content[0].(*mcp.TextContent).Text, "VALIDATION_ERROR") {
		t.Errorf("MCP, bad input: %+v, %v", out, err)
	}
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "mem_shred"}); err == nil || !strings.Contains(err.Error(), "no such tool") {
		t.Errorf("MCP, no tool: %v", err)
	}
	if status, got := r.do("GET", "/v1/tools", ""); status != 200 || !strings.Contains(got, `"name":"mem_set"`) {
		t.Errorf("%d %s", status, got)
	}
	if status, got := r.do("GET", "/tools", ""); status != 200 || !strings.Contains(got, `"name":"agentos.mem_set"`) {
		t.Errorf("%d %s", status, got)
	}
	if status, got := r.do("GET", "/health", ""); status != 200 || !strings.Contains(got, `"status":"ok"`) || !strings.Contains(got, `"timestamp"`) {
		t.Errorf("%d %s", status, got)
	}
}

func TestRefusalsOfToolsSayWhy(t *testing.T) {
	r, _, records := startTools(t, "writer", &team.Tools{Allow: []string{"mem_get", "mem_set"}, RatePerMinute: 20})
	for _, c := range []struct {
		name, input string
		status      int
		code        string
		says        string
	}{
		{"mem_get", `{"kee":"a","key":"?","key":"x"}`, 400, "VALIDATION_ERROR", "it is given twice"},
		{"mem_get", `{}`, 400, "VALIDATION_ERROR", "it is missing"},
		{"mem_delete", `{"key":"a"}`, 403, "PERMISSION_DENIED", "agents.writer.tools.allow"},
		{"proc_execute", `{}`, 403, "PERMISSION_DENIED", "tools.code.image"},
		{"msg_send", `{}`, 403, "PERMISSION_DENIED", "channels or messages"},
		{"mem_shred", `{}`, 404, "NOT_FOUND", "GET /v1/tools"},
		{"mem_get", `{"key":"` + strings.Repeat("a", 2<<20) + `"}`, 413, "TOO_LARGE", "1048576 bytes"},
		{"mem_set", `{"key":"a","value":"` + strings.Repeat("a", 4<<20) + `"}`, 400, "VALIDATION_ERROR", "bytes of JSON"},
	} {
		status, got := r.call(c.name, c.input)
		var e deny.Envelope
		if err := json.Unmarshal([]byte(got), &e); err != nil || status != c.status || e.StatusCode != status || e.Code != c.code || !strings.Contains(got, c.says) {
			t.Errorf("%s %.60s: %d %.300s", c.name, c.input, status, got)
		}
	}
	limited := false
	for range 30 {
		if status, got := r.call("mem_get", `{"key":"a"}`); status == 429 {
			limited = strings.Contains(got, "RATE_LIMITED") && strings.Contains(got, "retryAfter")
		}
	}
	if !limited {
		t.Error("30 calls went through where 20 a minute are allowed")
	}
	if out := records.String(); !strings.Contains(out, `"kind":"tool","verdict":"denied","target":"mem_delete"`) || !strings.Contains(out, "tools.rate") {
		t.Errorf("denials are not in the log: %s", out)
	}
}

func TestAnAgentWithoutToolsHasNone(t *testing.T) {
	r, _, _ := startTools(t, "writer", nil)
	if status, got := r.call("mem_get", `{"key":"a"}`); status != 403 || !strings.Contains(got, "no tools") {
		t.Errorf("%d %s", status, got)
	}
	if status, got := r.do("GET", "/v1/tools", ""); status != 200 || got != `{"tools":[]}` {
		t.Errorf("%d %s", status, got)
	}
}

func TestOneAgentDoesNotReachWhatIsAnothers(t *testing.T) {
	all := &team.Tools{Allow: []string{"mem", "vec", "fs", "db", "events", "proc"}, RatePerMinute: 10_000, CodeImage: "toolchain"}
	a, _, _ := startTools(t, "a", all)
	b, socketB, _ := startTools(t, "b", all)
	var task struct{ TaskID string }
	for _, c := range []struct{ name, input string }{
		{"mem_set", `{"key":"mine","value":"of b"}`},
		{"mem_remember", `{"key":"mine","content":"a word of b"}`},
		{"vec_upsert", `{"id":"mine","vector":[1,2,3],"metadata":{"of":"b"}}`},
		{"fs_mkdir", `{"path":"folder"}`},
		{"fs_write", `{"path":"folder/mine","text":"of b"}`},
		{"db_create_table", `{"table":"mine","schema":[{"column":"id","type":"integer","primaryKey":true}]}`},
		{"db_insert", `{"table":"mine","data":{"id":7}}`},
		{"events_subscribe", `{"topic":"mine","subscription":"s","from":"start"}`},
		{"events_publish", `{"topic":"mine","message":"of b"}`},
		{"proc_schedule", `{"expression":"@daily","tool":"mem_get","input":{"key":"mine"}}`},
	} {
		status, got := b.call(c.name, c.input)
		if status != 200 {
			t.Fatalf("%s: %d %s", c.name, status, got)
		}
		if c.name == "proc_schedule" {
			if err := json.Unmarshal([]byte(got), &task); err != nil || task.TaskID == "" {
				t.Fatalf("%v: %s", err, got)
			}
		}
	}
	// What there is none of is refused in the same words, whether b has it or not.
	for _, c := range []struct{ name, input, nobodys string }{
		{"fs_read", `{"path":"folder/mine"}`, `{"path":"folder/none"}`},
		{"fs_stat", `{"path":"folder/mine"}`, `{"path":"folder/none"}`},
		{"fs_list", `{"path":"folder"}`, `{"path":"none"}`},
		{"fs_delete", `{"path":"folder/mine"}`, `{"path":"folder/none"}`},
		{"db_query", `{"sql":"SELECT * FROM mine"}`, `{"sql":"SELECT * FROM none"}`},
		{"db_insert", `{"table":"mine","data":{"id":8}}`, `{"table":"none","data":{"id":8}}`},
		{"db_update", `{"table":"mine","data":{"id":8},"where":{"id":7}}`, `{"table":"none","data":{"id":8},"where":{"id":7}}`},
		{"db_delete", `{"table":"mine","where":{"id":7}}`, `{"table":"none","where":{"id":7}}`},
		{"db_transaction", `{"queries":[{"sql":"DELETE FROM mine"}]}`, `{"queries":[{"sql":"DELETE FROM none"}]}`},
		{"events_poll", `{"topic":"mine","subscription":"s"}`, `{"topic":"none","subscription":"s"}`},
		{"proc_kill", `{"processId":"p-mine"}`, `{"processId":"p-none"}`},
		{"proc_schedule", `{"action":"delete","taskId":"` + task.TaskID + `"}`, `{"action":"delete","taskId":"t-none"}`},
	} {
		status, got := a.call(c.name, c.input)
		status0, none := a.call(c.name, c.nobodys)
		plain := strings.NewReplacer("mine", "?", "none", "?", task.TaskID, "?", "t-none", "?", "folder/", "", "folder", "?")
		if status < 400 || status != status0 || plain.Replace(got) != plain.Replace(none) {
			t.Errorf("a, %s of b's: %d %s\nof nobody's: %d %s", c.name, status, got, status0, none)
		}
	}
	for _, c := range []struct{ name, input, want string }{
		{"vec_query", `{"vector":[1,2,3]}`, `"matches":[]`},
		{"vec_delete", `{"id":"mine"}`, `"deleted":false`},
		{"fs_list", `{}`, `"entries":[]`},
		{"events_list_topics", `{}`, `"topics":[]`},
		{"events_poll", `{"topic":"mine","subscription":"s","after":0}`, `"messages":[]`},
		{"events_unsubscribe", `{"topic":"mine","subscription":"s"}`, `"unsubscribed":false`},
		{"proc_list", `{}`, `"processes":[]`},
		{"proc_schedule", `{"action":"list"}`, `"tasks":[]`},
		{"mem_get", `{"key":"mine"}`, `"value":null`},
		{"mem_list", `{}`, `"keys":[]`},
		{"mem_recall", `{"query":"word"}`, `"memories":[]`},
		{"mem_recall", `{}`, `"memories":[]`},
		{"mem_history", `{"key":"mine"}`, `"versions":[]`},
		{"mem_delete", `{"key":"mine"}`, `"deleted":false`},
		{"mem_expire", `{"key":"mine","seconds":1}`, `"set":false`},
		{"mem_incr", `{"key":"mine"}`, `"value":1`},
		{"mem_forget", `{"key":"mine"}`, `"forgotten":false`},
	} {
		if status, got := a.call(c.name, c.input); status != 200 || !strings.Contains(got, c.want) {
			t.Errorf("a, %s: %d %s", c.name, status, got)
		}
	}
	// a's token at b's socket, in every way in.
	thief := asClient(t, socketB, a.token)
	for _, way := range []struct{ method, path, body string }{
		{"POST", "/v1/tools/mem_get", `{"key":"mine"}`},
		{"POST", "/mcp", `{"tool":"mem_get","input":{"key":"mine"}}`},
		{"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`},
		{"POST", "/mcp/stdio", ``},
		{"GET", "/v1/tools", ``},
		{"GET", "/tools", ``},
	} {
		if status, got := thief.do(way.method, way.path, way.body); status != 401 {
			t.Errorf("%s %s: %d %s", way.method, way.path, status, got)
		}
	}
	for _, c := range []struct{ name, input, want string }{
		{"mem_get", `{"key":"mine"}`, `"of b"`},
		{"mem_recall", `{"query":"word"}`, `a word of b`},
		{"vec_query", `{"vector":[1,2,3]}`, `"id":"mine"`},
		{"fs_read", `{"path":"folder/mine","as":"text"}`, `of b`},
		{"db_query", `{"sql":"SELECT id FROM mine"}`, `"rows":[{"id":7}]`},
		{"events_poll", `{"topic":"mine","subscription":"s"}`, `"of b"`},
		{"proc_schedule", `{"action":"list"}`, task.TaskID},
	} {
		if status, got := b.call(c.name, c.input); status != 200 || !strings.Contains(got, c.want) {
			t.Errorf("b's own, %s: %d %s", c.name, status, got)
		}
	}
}

func TestMCPSessionsAreBoundedAndTheirOwners(t *testing.T) {
	r, _, _ := startTools(t, "writer", &team.Tools{RatePerMinute: 10_000})
	for range maxSessions {
		r.mcp()
	}
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	q, err := http.NewRequestWithContext(t.Context(), "POST", "http://gateway/mcp", strings.NewReader(hello))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Accept", "application/json, text/event-stream")
	q.Header.Set("Content-Type", "application/json")
	a, err := r.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	if a.StatusCode != 429 || a.Header.Get("Retry-After") == "" {
		t.Errorf("one session more: %d", a.StatusCode)
	}
}

func TestMCPOverAnUpgradedConnection(t *testing.T) {
	r, socket, _ := startTools(t, "writer", &team.Tools{RatePerMinute: 10_000})
	c := asRuntime(t, socket)
	head := "POST /mcp/stdio HTTP/1.1\r\nHost: bulkhead.internal\r\nAuthorization: Bearer " + r.token + "\r\nConnection: Upgrade\r\nUpgrade: mcp-stdio\r\nContent-Length: 0\r\n\r\n"
	if _, err := io.WriteString(c, head); err != nil {
		t.Fatal(err)
	}
	var answer []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(answer, []byte("\r\n\r\n")) {
		if _, err := io.ReadFull(c, one); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		answer = append(answer, one...)
	}
	if !bytes.HasPrefix(answer, []byte("HTTP/1.1 101 ")) {
		t.Fatalf("%s", answer)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: c, Writer: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	out, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "mem_incr", Arguments: map[string]any{"key": "n"}})
	if err != nil || out.IsError {
		t.Errorf("%+v, %v", out, err)
	}
	if status, got := r.call("mem_get", `{"key":"n"}`); status != 200 || got != `{"key":"n","value":1}` {
		t.Errorf("%d %s", status, got)
	}
}

func TestToolsAtOnce(t *testing.T) {
	r, _, _ := startTools(t, "writer", &team.Tools{RatePerMinute: 100_000})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 25 {
				if status, got := r.call("mem_incr", `{"key":"n"}`); status != 200 {
					t.Errorf("%d %s", status, got)
				}
				if status, got := r.call("mem_set", fmt.Sprintf(`{"key":"k%d","value":%d}`, w, i)); status != 200 {
					t.Errorf("%d %s", status, got)
				}
			}
		})
	}
	wg.Wait()
	if _, got := r.call("mem_get", `{"key":"n"}`); got != `{"key":"n","value":200}` {
		t.Errorf("%s", got)
	}
}

// A file of more than a call in JSON may hold goes in and out as a stream, by
// the same rules.
func TestFilesStreamPastTheLimitOfJSON(t *testing.T) {
	r, _, _ := startTools(t, "writer", &team.Tools{RatePerMinute: 10_000, StorageBytes: 32 << 20})
	body := strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB
	if status, got := r.do("PUT", "/v1/files/big.bin", body); status != 200 || !strings.Contains(got, `"sizeBytes":16777216`) {
		t.Fatalf("PUT: %d %.300s", status, got)
	}
	if status, got := r.do("GET", "/v1/files/big.bin", ""); status != 200 || got != body {
		t.Errorf("GET: %d, %d bytes", status, len(got))
	}
	for path, want := range map[string]int{
		"/v1/files/none": 404, "/v1/files/..%2f..%2fagent.db": 403, "/v1/files/a%00b": 403, "/v1/files/%2fetc%2fpasswd": 403,
	} {
		if status, got := r.do("GET", path, ""); status != want {
			t.Errorf("GET %s: %d, want %d: %.200s", path, status, want, got)
		}
	}
	if status, got := r.do("PUT", "/v1/files/more.bin", body+body); status != 429 || !strings.Contains(got, "QUOTA_EXCEEDED") {
		t.Errorf("past the quota: %d %.300s", status, got)
	}
	if status, _ := r.do("GET", "/v1/files/more.bin", ""); status != 404 {
		t.Errorf("half a file is there: %d", status)
	}
}

func TestFilesAndSQLShareTheStorageOfTheManifest(t *testing.T) {
	r, _, _ := startTools(t, "writer", &team.Tools{RatePerMinute: 10_000, StorageBytes: 6 << 20})
	for _, c := range []struct{ name, input, want string }{
		{"fs_write", `{"path":"a.txt","text":"hello"}`, `"sizeBytes":5`},
		{"fs_read", `{"path":"a.txt"}`, `aGVsbG8=`},
		{"db_create_table", `{"table":"t","schema":[{"column":"id","type":"integer","primaryKey":true},{"column":"v","type":"text"}]}`, `t`},
		{"db_insert", `{"table":"t","data":{"id":1,"v":"x"}}`, `"v":"x"`},
		{"db_query", `{"sql":"SELECT v FROM t WHERE id = ?","params":[1]}`, `"rows":[{"v":"x"}]`},
	} {
		if status, got := r.call(c.name, c.input); status != 200 || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d %.300s", c.name, status, got)
		}
	}
	big := `{"path":"%s","text":"` + strings.Repeat("x", 3<<20) + `"}`
	if status, got := r.call("fs_write", fmt.Sprintf(big, "one")); status != 200 {
		t.Fatalf("%d %.300s", status, got)
	}
	if status, got := r.call("fs_write", fmt.Sprintf(big, "two")); status != 429 || !strings.Contains(got, "QUOTA_EXCEEDED") {
		t.Errorf("more than the quota: %d %.300s", status, got)
	}
}
