package gateway

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/messages"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/team"
	"bulkhead/internal/tool"
)

var update = flag.Bool("update", false, "write openapi.json anew from the tool table")

// everyTool opens every group as a gateway does.
func everyTool(t *testing.T) []tool.Tool {
	t.Helper()
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, systemDB)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	cfg := &Config{Team: "t", Agent: "a", Data: dir, Tools: &team.Tools{}}
	m := &means{cfg: cfg, store: st, log: record.NewLog("t", &bytes.Buffer{}), messages: &messages.Messages{}}
	var all []tool.Tool
	for _, g := range groups {
		opened, err := g.open(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range opened.tools {
			if one.Group != g.name {
				t.Errorf("%s is in group %s, the row says %s", one.Name, one.Group, g.name)
			}
		}
		all = append(all, opened.tools...)
		if opened.close != nil {
			t.Cleanup(func() { _ = opened.close() })
		}
	}
	return all
}

// statuses are those of the tools' codes, with the envelope as their body.
func statuses() []string {
	seen := map[string]bool{}
	for _, c := range deny.Codes() {
		r := deny.Reason{Layer: deny.LayerTools, Code: c}
		if bytes.HasPrefix([]byte(c), []byte("tools.")) || c == deny.BadToken {
			seen[strconv.Itoa(r.Envelope().StatusCode)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func TestOpenAPIIsMadeFromTheToolTable(t *testing.T) {
	type object = map[string]any
	var doc object
	if err := json.Unmarshal(messages.OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	paths, _ := doc["paths"].(object)
	table, err := tool.NewTable(everyTool(t)...)
	if err != nil {
		t.Fatal(err)
	}
	refused := object{"description": "refused", "content": object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Envelope"}}}}
	for _, one := range table.All() {
		answers := object{"200": object{"description": "the tool's answer", "content": object{"application/json": object{"schema": object{"type": "object"}}}}}
		for _, s := range statuses() {
			answers[s] = refused
		}
		paths["/v1/tools/"+one.Name] = object{"post": object{
			"operationId": one.Name, "summary": one.Summary, "tags": []string{string(one.Group)}, "responses": answers,
			"requestBody": object{"required": len(one.Fields) > 0, "content": object{"application/json": object{"schema": one.Schema()}}},
		}}
	}
	paths["/v1/tools"] = object{"get": object{
		"operationId": "listTools", "summary": "List the tools that this agent may call, with the JSON Schema of their inputs.",
		"responses": object{"200": object{"description": "the tools", "content": object{"application/json": object{"schema": object{"type": "object"}}}}, "401": refused},
	}}
	paths["/health"] = object{"get": object{
		"operationId": "health", "summary": "Say that the gateway answers; no token is needed.", "security": []any{},
		"responses": object{"200": object{"description": "it answers", "content": object{"application/json": object{"schema": object{"type": "object"}}}}},
	}}
	want, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile("openapi.json", want, 0o644); err != nil { // #nosec G306 -- read by everybody
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(document, want) {
		t.Error("openapi.json is not what the tool table says: go generate ./internal/gateway")
	}
	if _, ok := doc["components"].(object)["schemas"].(object)["Envelope"]; !ok {
		t.Error("the document of messages has no schema Envelope")
	}
}
