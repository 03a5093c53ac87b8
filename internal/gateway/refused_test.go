package gateway

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
)

// What is refused before any tool is named is on record like a call.
func TestWhatIsNoCallYetIsOnRecordToo(t *testing.T) {
	data := t.TempDir()
	t.Cleanup(func() { // when the gateway has ended
		ctx := context.Background()
		s, err := store.Open(ctx, store.Config{Path: filepath.Join(data, systemDB)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		all, _, err := s.Spool().Recent(ctx, time.Time{}, 100)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, r := range all {
			if r.Reason != nil {
				got[r.Target+" "+string(r.Reason.Code)]++
			}
		}
		for _, want := range []string{"gateway.sock " + string(deny.BadToken), "/mcp " + string(deny.ToolTooLarge), "/mcp/stdio " + string(deny.ToolInvalid)} {
			if got[want] == 0 {
				t.Errorf("no %s in %v", want, got)
			}
		}
	})
	socket, records := serveGateway(t, func(_ string, cfg *Config) {
		cfg.Agent, cfg.Data, cfg.Tools, cfg.Token = "writer", data, &team.Tools{Allow: []string{"mem_get"}}, runtimeToken+"writer"
	})
	if status, got := asClient(t, socket, "wrong").call("mem_get", `{"key":"a"}`); status != 401 {
		t.Errorf("%d %s", status, got)
	}
	r := asClient(t, socket, tooltoken.Of(runtimeToken+"writer"))
	if status, got := r.do("POST", "/mcp", `{"x":"`+strings.Repeat("x", 17<<20)+`"}`); status != 413 {
		t.Errorf("%d %.200s", status, got)
	}
	if status, got := r.do("POST", "/mcp/stdio", ""); status != 400 {
		t.Errorf("%d %s", status, got)
	}
	if out := records.String(); !strings.Contains(out, `"target":"/mcp"`) {
		t.Errorf("not in the log: %s", out)
	}
}
