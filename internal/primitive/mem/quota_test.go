package mem

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
	"bulkhead/internal/tool/tooltest"
)

// Callers with tokens of different quotas write at once. Each value is of one
// size, so how many fit is known.
func TestATokensQuotaIsExactUnderConcurrency(t *testing.T) {
	const each = 100 // bytes that a value counts
	s := tooltest.Store(t, func(c *store.Config) { c.Quota = 60 * each })
	m, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	agent := tooltest.New(t, s, m.Tools()...)
	put := func(c tooltest.Caller, key string) *deny.Reason {
		_, reason := c.Try("mem_set", map[string]any{"key": key, "value": strings.Repeat("x", each-len(key)-2-entryCost)})
		return reason
	}
	many := func(c tooltest.Caller, name string, n int) int64 {
		var taken atomic.Int64
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				switch r := put(c, fmt.Sprintf("%s%03d", name, i)); {
				case r == nil:
					taken.Add(1)
				case r.Code != deny.ToolQuota:
					t.Error(r)
				}
			})
		}
		all.Wait()
		return taken.Load()
	}
	ten, thirty := agent.With(tool.Quota{Memory: 10*each + each/2}), agent.With(tool.Quota{Memory: 30 * each})
	var wg sync.WaitGroup
	var byTen, byThirty int64
	wg.Go(func() { byTen = many(ten, "a", 50) })
	wg.Go(func() { byThirty = many(thirty, "b", 50) })
	wg.Wait()
	// With the larger one they go on to just its bound; with the smaller one no
	// value went in after the tenth.
	if byTen > 10 || byTen+byThirty != 30 {
		t.Errorf("%d with ten and %d with thirty fit", byTen, byThirty)
	}
	if r := put(ten, "c000"); r == nil || r.Code != deny.ToolQuota || !strings.Contains(r.Mend, "token") {
		t.Errorf("above the token's: %+v", r)
	}
	// What is there may be replaced by as much, and deleted, with any token.
	key := "b000"
	if byThirty > 0 {
		if _, r := ten.Try("mem_delete", map[string]any{"key": key}); r != nil {
			t.Error(r)
		}
		if r := put(thirty, key); r != nil && r.Code != deny.ToolQuota {
			t.Error(r)
		}
	}
	// Without a quota of its own a token has the agent's.
	if n := many(agent, "d", 100); n < 29 || n > 31 {
		t.Errorf("%d more fit for the agent itself", n)
	}
	if r := put(agent, "e000"); r == nil || !strings.Contains(r.Mend, "tools.memory") {
		t.Errorf("above the agent's: %+v", r)
	}
	wide := agent.With(tool.Quota{Memory: 1000 * each})
	if r := put(wide, "e001"); r == nil || !strings.Contains(r.Mend, "tools.memory") {
		t.Errorf("a token widens the agent's quota: %+v", r)
	}
}
