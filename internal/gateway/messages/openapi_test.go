package messages

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

var update = flag.Bool("update", false, "write openapi.json anew from the Go types")

type object = map[string]any

// operation is one endpoint: what it takes and gives.
type operation struct {
	method, path, id, summary string
	parameters                []object
	body                      any
	answers                   map[string]any // by status; nil: the error envelope
}

func number(name, in, about string) object {
	return object{"name": name, "in": in, "required": in == "path", "description": about, "schema": object{"type": "integer", "minimum": 0}}
}

func text(name, in, about string) object {
	return object{"name": name, "in": in, "required": in == "path", "description": about, "schema": object{"type": "string"}}
}

// batch is Batch with the type that its elements have.
type batch struct {
	Messages []adapter.Draft `json:"messages" jsonschema:"minItems=1,maxItems=256"`
}

type deliveries struct {
	Deliveries []adapter.Delivery `json:"deliveries"`
	Replayed   []adapter.Message  `json:"replayed,omitempty"`
}

var operations = []operation{
	{
		"post", "/v1/messages", "sendMessage", "Send one message. 201: it is on disk. 200: this key was taken before. 202: it is on disk in the outbox.", nil,
		adapter.Draft{},
		map[string]any{"201": adapter.SendResult{}, "200": adapter.SendResult{}, "202": Queued{}, "400": nil, "401": nil, "403": nil, "409": nil, "413": nil, "429": nil, "503": nil},
	},
	{
		"post", "/v1/messages:batch", "sendMessages", "Send several messages, each judged on its own.", nil,
		batch{},
		map[string]any{"207": Items{}, "400": nil, "401": nil, "413": nil},
	},
	{
		"post", "/v1/messages:receive", "receiveMessages", "Lease messages, and wait for the first. Durations are in nanoseconds.", nil,
		adapter.ReceiveRequest{},
		map[string]any{"200": deliveries{}, "400": nil, "401": nil, "403": nil, "429": nil, "503": nil},
	},
	{
		"get", "/v1/messages:stream", "streamMessages", "Deliveries as server-sent events `delivery`, at most max of which are not settled.",
		[]object{number("max", "query", "1 to 100; 10"), text("channel", "query", "only from this one")},
		nil,
		map[string]any{"200": "text/event-stream", "400": nil, "401": nil, "403": nil},
	},
	{"post", "/v1/messages:ack", "acknowledgeMessages", "End deliveries for good.", nil, Leases{}, map[string]any{"207": Items{}, "400": nil, "401": nil, "503": nil}},
	{"post", "/v1/messages:refuse", "refuseMessages", "Give deliveries back for a later try.", nil, Refusals{}, map[string]any{"207": Items{}, "400": nil, "401": nil, "503": nil}},
	{"post", "/v1/messages:extend", "extendLeases", "Keep deliveries for longer.", nil, Leases{}, map[string]any{"207": Items{}, "400": nil, "401": nil, "503": nil}},
	{
		"post", "/v1/channels:request", "requestMembership", "Ask that an agent joins or leaves a channel. Only the orchestrator may; an operator decides. 201: it waits for that. 200: it did already.", nil,
		adapter.ChannelRequest{},
		map[string]any{"201": adapter.MembershipRequest{}, "200": adapter.MembershipRequest{}, "400": nil, "401": nil, "403": nil, "429": nil, "503": nil},
	},
	{"get", "/v1/channels", "listChannels", "What this agent may read or write.", nil, nil, map[string]any{"200": Channels{}, "401": nil, "503": nil}},
	{
		"get", "/v1/channels/{channel}/messages", "replayChannel", "Read a channel from a sequence id on.",
		[]object{text("channel", "path", "channel"), number("from", "query", "the first sequence id; 1"), number("limit", "query", "1 to 1000; 100")},
		nil,
		map[string]any{"200": adapter.Page{}, "400": nil, "401": nil, "403": nil, "503": nil},
	},
	{
		"get", "/v1/channels/{channel}/threads/{sequence}", "readThread", "Read a message and everything that answers it.",
		[]object{text("channel", "path", "channel"), number("sequence", "path", "of any message of the thread"), number("after", "query", "the last sequence id of the page before"), number("limit", "query", "1 to 1000; 100")},
		nil,
		map[string]any{"200": adapter.Page{}, "400": nil, "401": nil, "403": nil, "503": nil},
	},
	{"get", "/v1/outbox", "readOutbox", "What waits for the adapter, and what it refused after 202.", nil, nil, map[string]any{"200": Outbox{}, "401": nil}},
}

var statusWords = map[string]string{
	"200": "done", "201": "on disk", "202": "on disk in the outbox", "207": "one answer for each", "400": "every failing field is named", "401": "no token, or a wrong one",
	"403": "the manifest does not allow it; the rule is named", "409": "the key was used with another content", "413": "too large", "429": "no room now: Retry-After", "503": "neither adapter nor outbox: Retry-After",
}

func openAPI(t *testing.T) []byte {
	t.Helper()
	schemas := object{}
	r := &jsonschema.Reflector{
		Anonymous: true, ExpandedStruct: false, AllowAdditionalProperties: false,
		Namer: func(t reflect.Type) string {
			if t.Name() == "" {
				return ""
			}
			return strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
		},
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			if t == reflect.TypeFor[json.RawMessage]() {
				return &jsonschema.Schema{Description: "any JSON value"}
			}
			return nil
		},
	}
	ref := func(v any) object {
		s := r.Reflect(v)
		raw, err := json.Marshal(s.Definitions)
		if err != nil {
			t.Fatal(err)
		}
		raw = bytes.ReplaceAll(raw, []byte("#/$defs/"), []byte("#/components/schemas/"))
		var defs object
		if err := json.Unmarshal(raw, &defs); err != nil {
			t.Fatal(err)
		}
		for k, d := range defs {
			schemas[k] = d
		}
		return object{"$ref": strings.Replace(s.Ref, "#/$defs/", "#/components/schemas/", 1)}
	}
	paths := object{}
	for _, o := range operations {
		answers := object{}
		for status, v := range o.answers {
			content := object{"application/json": object{}}
			switch v := v.(type) {
			case nil:
				content["application/json"] = object{"schema": ref(deny.Envelope{})}
			case string:
				content = object{v: object{"schema": object{"type": "string"}}}
			default:
				content["application/json"] = object{"schema": ref(v)}
			}
			answers[status] = object{"description": statusWords[status], "content": content}
		}
		op := object{"operationId": o.id, "summary": o.summary, "responses": answers}
		if o.parameters != nil {
			op["parameters"] = o.parameters
		}
		if o.body != nil {
			op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": ref(o.body)}}}
		}
		paths[o.path] = object{o.method: op}
	}
	draft := schemas["Draft"].(object)["properties"].(object)
	draft["idempotency_key"].(object)["format"] = "uuid"
	draft["type"].(object)["pattern"] = "^[a-z][a-z0-9_]{0,63}$"
	draft["priority"].(object)["enum"] = []string{"low", "normal", "high"}
	out, err := json.MarshalIndent(object{
		"openapi":  "3.1.0",
		"info":     object{"title": "Bulkhead messages", "version": "1", "description": "What an agent asks its own gateway: on gateway.sock, and as http://bulkhead.internal/ through the runtime's proxy."},
		"servers":  []object{{"url": "http://bulkhead.internal"}},
		"security": []object{{"token": []string{}}, {"basic": []string{}}},
		"paths":    paths,
		"components": object{"schemas": schemas, "securitySchemes": object{
			"token": object{"type": "http", "scheme": "bearer", "description": "the content of the file that $BULKHEAD_TOKEN_FILE names"},
			"basic": object{"type": "http", "scheme": "basic", "description": "any user, the token as password"},
		}},
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

func TestOpenAPIIsWhatTheTypesSay(t *testing.T) {
	want := openAPI(t)
	if *update {
		if err := os.WriteFile("openapi.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(document, want) {
		t.Error("openapi.json is not what the types say: run go test ./internal/gateway/messages -update")
	}
}

// Every endpoint of the document is served, and every one that is served is in
// the document.
func TestOpenAPIHasEveryEndpoint(t *testing.T) {
	mux := http.NewServeMux()
	(&Messages{}).Register(mux)
	seen := map[string]bool{}
	for _, o := range operations {
		path := strings.NewReplacer("{channel}", "all", "{sequence}", "1").Replace(o.path)
		_, pattern := mux.Handler(httptest.NewRequest(strings.ToUpper(o.method), path, nil))
		if pattern != strings.ToUpper(o.method)+" "+o.path {
			t.Errorf("%s %s is served by %q", o.method, o.path, pattern)
		}
		seen[pattern] = true
	}
	text, err := os.ReadFile("rest.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, rest, ok := strings.Cut(line, `mux.HandleFunc("`); ok {
			if pattern, _, _ := strings.Cut(rest, `"`); !seen[pattern] {
				t.Errorf("%s is not in the document", pattern)
			}
		}
	}
}
