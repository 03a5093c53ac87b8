// Package tooltest calls tools in tests as a gateway does: through the
// dispatcher, with records in a real store.
package tooltest

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// Rate is more calls a minute than a test makes.
const Rate = 1_000_000

// Store opens a store of its own; change may be nil.
func Store(t testing.TB, change func(*store.Config)) *store.Store {
	t.Helper()
	cfg := store.Config{Path: filepath.Join(t.TempDir(), "system.db")}
	if change != nil {
		change(&cfg)
	}
	s, err := store.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Caller calls tools.
type Caller struct {
	T     testing.TB
	Calls *tool.Dispatcher
	Who   tool.Caller // Team and Agent are always the same
}

// With calls with a token of that quota.
func (c Caller) With(q tool.Quota) Caller {
	c.Who.Quota = q
	return c
}

// New serves tools, whose records go to s.
func New(t testing.TB, s *store.Store, tools ...tool.Tool) Caller {
	t.Helper()
	table, err := tool.NewTable(tools...)
	if err != nil {
		t.Fatal(err)
	}
	var allowed []string
	for _, one := range tools {
		allowed = append(allowed, one.Name)
	}
	return Caller{T: t, Calls: tool.New(tool.Config{Table: table, Journal: s, Allowed: allowed, Rate: Rate})}
}

// Try makes a call; input is marshalled unless it is a string.
func (c Caller) Try(name string, input any) (string, *deny.Reason) {
	c.T.Helper()
	return c.try(context.Background(), name, input)
}

// Step makes a call that must go well as a step of an execution does, within the store's
// transaction, and gives what takes it back.
func (c Caller) Step(name string, input any) (undo []byte) {
	c.T.Helper()
	_, reason := c.try(tool.WithKeeper(context.Background(), func(tx tool.Exec, b []byte) error {
		if tx == nil {
			c.T.Errorf("%s keeps outside of the transaction what takes it back", name)
		}
		undo = b
		return nil
	}), name, input)
	if reason != nil || undo == nil {
		c.T.Fatalf("%s %.200v: %v, and it keeps %q", name, input, reason, undo)
	}
	return undo
}

func (c Caller) try(ctx context.Context, name string, input any) (string, *deny.Reason) {
	c.T.Helper()
	text, ok := input.(string)
	if !ok {
		raw, err := json.Marshal(input)
		if err != nil {
			c.T.Fatal(err)
		}
		text = string(raw)
	}
	who := c.Who
	who.Team, who.Agent = "t", "a"
	out, reason := c.Calls.Call(ctx, who, name, []byte(text))
	return string(out), reason
}

// Do makes a call that must go well.
func (c Caller) Do(name string, input any) string {
	c.T.Helper()
	out, reason := c.Try(name, input)
	if reason != nil {
		c.T.Fatalf("%s %.200v: %v %+v", name, input, reason, reason.Fields)
	}
	return out
}

// Denied makes a call that must be refused for a reason of that code.
func (c Caller) Denied(code deny.Code, name string, input any) {
	c.T.Helper()
	out, reason := c.Try(name, input)
	if reason == nil || reason.Code != code {
		c.T.Errorf("%s %.200v: %s, %v; want %s", name, input, out, reason, code)
	}
}
